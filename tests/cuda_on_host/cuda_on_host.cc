#include "cuda_on_host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "fiber.h"

namespace cuda_on_host {
namespace {

constexpr std::size_t kStack = 256 * 1024;

struct Barrier {
    int generation = 0;
    int arrived = 0;
};
struct Warp {
    Barrier barrier;
    int live = 0;
    int parity_of[32] = {};
    alignas(16) unsigned char slots[2][32 * kLaneBytes];
};
struct Copy {
    unsigned char* to;
    const void* from;
    int bytes;
};
struct Thread {
    void* sp = nullptr;
    bool done = false;
    const int* wait = nullptr;  // generation that must differ from `seen`
    int seen = 0;
    uint3_ index{};
    std::deque<std::vector<Copy>> copies{1};  // groups; the last one is open
};
struct Guarded {
    unsigned char* map = nullptr;
    std::size_t size = 0;
};
std::map<void*, Guarded> allocations;
std::mutex launching;  // thread ranks: one kernel at a time
std::mutex allocating;

unsigned char* guarded(std::size_t n, Guarded& out, std::size_t alignment = 16) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t use = (n + alignment - 1) / alignment * alignment;
    const std::size_t body = (use + page - 1) / page * page;
    auto* map = static_cast<unsigned char*>(
        mmap(nullptr, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (map == MAP_FAILED) {
        std::fprintf(stderr, "cuda_on_host: no memory for %zu bytes\n", n);
        std::abort();
    }
    mprotect(map, page, PROT_NONE);
    mprotect(map + page + body, page, PROT_NONE);
    out = {map, body + 2 * page};
    unsigned char* start = map + page + body - use;
    std::memset(start, 0xFF, use);
    return start;
}

struct Block {
    std::vector<Thread> threads;
    std::vector<std::unique_ptr<Warp>> warps;
    Barrier all;
    Barrier named[16];
    int live = 0;
    int predicate[2] = {};
    int current = 0;
    void* scheduler = nullptr;
    const std::function<void()>* body = nullptr;
};
Block* block = nullptr;
unsigned char* shared_base = nullptr;
std::size_t shared_bytes = 0;

std::vector<void*> stacks;
void yield() {
    cuda_on_host_switch(&block->threads[static_cast<std::size_t>(block->current)].sp, block->scheduler);
}

void wait_on(Barrier& b, int seen) {
    Thread& t = block->threads[static_cast<std::size_t>(block->current)];
    t.wait = &b.generation;
    t.seen = seen;
    yield();
}
void arrive(Barrier& b, int expected) {
    const int seen = b.generation;
    if (++b.arrived == expected) {
        b.arrived = 0;
        ++b.generation;
        return;
    }
    wait_on(b, seen);
}

void thread_main() {
    (*block->body)();
    Block& here = *block;
    const int i = here.current;
    here.threads[static_cast<std::size_t>(i)].done = true;
    --here.live;
    if (here.all.arrived > 0 && here.all.arrived == here.live) {
        here.all.arrived = 0;
        ++here.all.generation;
    }
    Warp& w = *here.warps[static_cast<std::size_t>(i / 32)];
    --w.live;
    if (w.barrier.arrived > 0 && w.barrier.arrived == w.live) {
        w.barrier.arrived = 0;
        ++w.barrier.generation;
    }
    yield();
    std::abort();
}

}  // namespace

unsigned char* dynamic_shared() {
    return shared_base;
}
std::size_t dynamic_shared_bytes() {
    return shared_bytes;
}
int lane() {
    return block->current % 32;
}
void sync_threads() {
    arrive(block->all, block->live);
}
void sync_named(int id, int threads) {
    arrive(block->named[id], threads);
}
int sync_count(int predicate) {
    const int g = block->all.generation;
    block->predicate[g & 1] += predicate != 0;
    arrive(block->all, block->live);
    const int r = block->predicate[g & 1];
    arrive(block->all, block->live);
    block->predicate[g & 1] = 0;
    arrive(block->all, block->live);
    return r;
}
void copy_later(unsigned char* to, const void* from, int bytes) {
    block->threads[static_cast<std::size_t>(block->current)].copies.back().push_back({to, from, bytes});
}
void copies_commit() {
    block->threads[static_cast<std::size_t>(block->current)].copies.emplace_back();
}
void copies_wait(int pending) {
    auto& groups = block->threads[static_cast<std::size_t>(block->current)].copies;
    for (; groups.size() > static_cast<std::size_t>(pending) + 1; groups.pop_front()) {
        for (const Copy& copy : groups.front()) {
            if (copy.from == nullptr) {
                std::memset(copy.to, 0, static_cast<std::size_t>(copy.bytes));
            } else {
                std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
            }
        }
    }
}
const unsigned char* warp_exchange(const void* value, std::size_t bytes, unsigned mask) {
    (void)mask;
    Warp& w = *block->warps[static_cast<std::size_t>(block->current / 32)];
    const int parity = w.barrier.generation & 1;
    std::memcpy(w.slots[parity] + kLaneBytes * static_cast<unsigned>(lane()), value, bytes);
    arrive(w.barrier, w.live);
    return w.slots[parity];
}

void run(const Launch& launch, const std::function<void()>& body, const char* name) {
    const std::lock_guard<std::mutex> one(launching);
    const char* order_name = std::getenv("CUDA_ON_HOST_ORDER");
    const char mode = order_name == nullptr ? 'f' : order_name[0];
    const int count = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    if (count < 1 || count > 1024 || launch.grid.x < 1 || launch.grid.y < 1 || launch.grid.y > 65535 ||
        launch.grid.z > 65535 || launch.shared > 227 * 1024) {
        std::fprintf(stderr, "cuda_on_host: bad launch of %s: %u threads, grid %u %u, %zu shared\n", name, count,
                     launch.grid.x, launch.grid.y, launch.shared);
        std::abort();
    }
    gridDim = launch.grid;
    blockDim = launch.block;
    Guarded shared_guard;
    shared_base = guarded(std::max<std::size_t>(launch.shared, 16), shared_guard, 1024);
    shared_bytes = launch.shared;
    std::mt19937 random(12345);
    const std::int64_t blocks = std::int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    for (std::int64_t n = 0; n < blocks; ++n) {
        const std::int64_t b = mode == 'r' ? blocks - 1 - n : n;
        blockIdx = {static_cast<unsigned>(b % launch.grid.x), static_cast<unsigned>(b / launch.grid.x % launch.grid.y),
                    static_cast<unsigned>(b / launch.grid.x / launch.grid.y)};
        std::memset(shared_base, 0xFF, launch.shared);
        Block here;
        block = &here;
        here.threads.resize(static_cast<std::size_t>(count));
        here.live = count;
        here.body = &body;
        for (int w = 0; w < (count + 31) / 32; ++w) {
            here.warps.push_back(std::make_unique<Warp>());
            here.warps.back()->live = std::min(32, count - 32 * w);
        }
        for (int i = 0; i < count; ++i) {
            Thread& t = here.threads[static_cast<std::size_t>(i)];
            const unsigned u = static_cast<unsigned>(i);
            t.index = {u % launch.block.x, u / launch.block.x % launch.block.y, u / launch.block.x / launch.block.y};
            if (stacks.size() <= static_cast<std::size_t>(i))
                stacks.push_back(
                    mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            t.sp = cuda_on_host_prepare(stacks[static_cast<std::size_t>(i)], kStack, thread_main);
        }
        std::vector<int> order(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) order[static_cast<std::size_t>(i)] = mode == 'r' ? count - 1 - i : i;
        if (mode == 's') std::shuffle(order.begin(), order.end(), random);
        int left = count;
        while (left > 0) {
            bool moved = false;
            for (const int i : order) {
                Thread& t = here.threads[static_cast<std::size_t>(i)];
                if (t.done || (t.wait != nullptr && *t.wait == t.seen)) continue;
                t.wait = nullptr;
                moved = true;
                here.current = i;
                threadIdx = t.index;
                cuda_on_host_switch(&here.scheduler, t.sp);
                if (t.done) --left;
            }
            if (!moved) {
                std::fprintf(stderr,
                             "cuda_on_host: %s: block %lld waits for ever: a barrier that not all threads reach\n",
                             name, static_cast<long long>(b));
                std::abort();
            }
        }
        block = nullptr;
    }
    munmap(shared_guard.map, shared_guard.size);
    shared_base = nullptr;
}

}  // namespace cuda_on_host

cudaError_t cudaMalloc(void** p, std::size_t n) {
    const std::lock_guard<std::mutex> one(cuda_on_host::allocating);
    cuda_on_host::Guarded g;
    *p = cuda_on_host::guarded(std::max<std::size_t>(n, 1), g);
    cuda_on_host::allocations[*p] = g;
    return 0;
}
cudaError_t cudaFree(void* p) {
    if (p == nullptr) return 0;
    const std::lock_guard<std::mutex> one(cuda_on_host::allocating);
    const auto it = cuda_on_host::allocations.find(p);
    if (it == cuda_on_host::allocations.end()) {
        std::fprintf(stderr, "cuda_on_host: cudaFree of what was not allocated\n");
        std::abort();
    }
    munmap(it->second.map, it->second.size);
    cuda_on_host::allocations.erase(it);
    return 0;
}
