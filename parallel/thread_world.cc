// Rendezvous: a sender posts the place of its bytes in the receiver's mailbox and waits until they were copied.
#include "parallel/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

struct Post {
    int from = 0;
    int to = 0;
    std::span<const std::byte> bytes;
    enum class Stage { kPosted, kBeingCopied, kDone } stage = Stage::kPosted;
};

}  // namespace

class ThreadWorld::State {
public:
    State(int size, std::optional<std::chrono::milliseconds> timeout)
        : size_(size), timeout_(timeout), boxes_(static_cast<std::size_t>(size)) {}

    [[nodiscard]] int size() const { return size_; }
    void exchange(int rank, std::span<const SendOp> sends, std::span<const RecvOp> recvs);
    void abort(int rank, const std::string& reason) noexcept;

private:
    struct Box {
        std::deque<Post*> posts;  ///< messages on their way to this rank, in the order they were sent
        std::condition_variable changed;
    };
    using Lock = std::unique_lock<std::mutex>;
    using Deadline = std::optional<std::chrono::steady_clock::time_point>;

    Box& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }
    void receive(Lock& lock, int rank, const RecvOp& recv, const Deadline& deadline);
    void withdraw(Lock& lock, int rank, std::vector<Post>& posts) noexcept;
    void abort_locked(int rank, const std::string& reason) noexcept;
    template <class Ready>
    void wait(Lock& lock, int rank, const Deadline& deadline, Ready ready, const std::set<int>& awaited);

    const int size_;
    const std::optional<std::chrono::milliseconds> timeout_;
    std::mutex mutex_;
    std::vector<Box> boxes_;
    bool aborted_ = false;
    int failed_rank_ = -1;
    std::string reason_;
};

template <class Ready>
void ThreadWorld::State::wait(Lock& lock, int rank, const Deadline& deadline, Ready ready,
                              const std::set<int>& awaited) {
    const auto wakes = [&] { return aborted_ || ready(); };
    bool in_time = true;
    if (deadline) {
        in_time = box(rank).changed.wait_until(lock, *deadline, wakes);
    } else {
        box(rank).changed.wait(lock, wakes);
    }
    if (aborted_) throw PeerLostError(fmt::format("rank {} ended the world: {}", failed_rank_, reason_));
    if (!in_time) {
        throw PeerLostError(fmt::format("rank {} waited {} ms for rank(s) {}, which did not answer", rank,
                                        timeout_->count(), fmt::join(awaited, ", ")));
    }
}

void ThreadWorld::State::receive(Lock& lock, int rank, const RecvOp& recv, const Deadline& deadline) {
    auto& posts = box(rank).posts;
    auto found = posts.end();
    const auto arrived = [&] {
        found = std::find_if(posts.begin(), posts.end(), [&](const Post* post) { return post->from == recv.from; });
        return found != posts.end();
    };
    wait(lock, rank, deadline, arrived, {recv.from});
    Post* post = *found;
    if (post->bytes.size() != recv.bytes.size()) {
        const std::string reason = fmt::format("rank {} sent {} bytes to rank {}, which expects {}", recv.from,
                                               post->bytes.size(), rank, recv.bytes.size());
        abort_locked(rank, reason);
        throw InternalError(reason);
    }
    posts.erase(found);
    post->stage = Post::Stage::kBeingCopied;
    lock.unlock();
    if (!recv.bytes.empty()) std::memmove(recv.bytes.data(), post->bytes.data(), recv.bytes.size());
    lock.lock();
    post->stage = Post::Stage::kDone;
    box(recv.from).changed.notify_all();
}

/// Takes back what nobody has begun to read, and waits for what somebody is reading: the bytes belong to the caller.
void ThreadWorld::State::withdraw(Lock& lock, int rank, std::vector<Post>& posts) noexcept {
    for (Post& post : posts) {
        if (post.stage == Post::Stage::kPosted) std::erase(box(post.to).posts, &post);
    }
    box(rank).changed.wait(lock, [&] {
        return std::none_of(posts.begin(), posts.end(),
                            [](const Post& post) { return post.stage == Post::Stage::kBeingCopied; });
    });
}

void ThreadWorld::State::exchange(int rank, std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    std::vector<Post> posts;  // its elements must stay where they are from the first push on
    posts.reserve(sends.size());
    for (const SendOp& send : sends) {
        if (send.to < 0 || send.to >= size_) throw InternalError(fmt::format("thread world: no rank {}", send.to));
        posts.push_back({rank, send.to, send.bytes});
    }
    for (const RecvOp& recv : recvs) {
        if (recv.from < 0 || recv.from >= size_)
            throw InternalError(fmt::format("thread world: no rank {}", recv.from));
    }
    Deadline deadline;
    if (timeout_) deadline = std::chrono::steady_clock::now() + *timeout_;

    Lock lock(mutex_);
    try {
        for (Post& post : posts) {
            box(post.to).posts.push_back(&post);
            box(post.to).changed.notify_all();
        }
        for (const RecvOp& recv : recvs) receive(lock, rank, recv, deadline);
        std::set<int> awaited;
        const auto delivered = [&] {
            awaited.clear();
            for (const Post& post : posts) {
                if (post.stage != Post::Stage::kDone) awaited.insert(post.to);
            }
            return awaited.empty();
        };
        wait(lock, rank, deadline, delivered, awaited);
    } catch (...) {
        withdraw(lock, rank, posts);
        throw;
    }
}

void ThreadWorld::State::abort_locked(int rank, const std::string& reason) noexcept {
    if (!aborted_) {
        aborted_ = true;
        failed_rank_ = rank;
        try {
            reason_ = reason;
        } catch (...) {
            reason_.clear();  // out of memory: the world still ends, without its reason
        }
    }
    for (Box& each : boxes_) each.changed.notify_all();
}

void ThreadWorld::State::abort(int rank, const std::string& reason) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    abort_locked(rank, reason);
}

namespace {

class ThreadCommunicator final : public Communicator {
public:
    ThreadCommunicator(std::shared_ptr<ThreadWorld::State> state, int rank) : state_(std::move(state)), rank_(rank) {}
    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return state_->size(); }
    [[nodiscard]] std::string name() const override { return "threads"; }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        state_->exchange(rank_, sends, recvs);
    }
    void abort(const std::string& reason, ExitCode /*code*/) noexcept override { state_->abort(rank_, reason); }

private:
    std::shared_ptr<ThreadWorld::State> state_;
    int rank_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, std::optional<std::chrono::milliseconds> timeout) {
    if (size < 1) throw UsageError(fmt::format("ranks: expected 1 or more, found {}", size));
    state_ = std::make_shared<State>(size, timeout);
}

ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) const {
    if (rank < 0 || rank >= state_->size()) {
        throw InternalError(fmt::format("thread world of {} ranks: no rank {}", state_->size(), rank));
    }
    return std::make_unique<ThreadCommunicator>(state_, rank);
}

void run_thread_ranks(int ranks, const std::function<void(Communicator&)>& body,
                      std::optional<std::chrono::milliseconds> timeout) {
    const ThreadWorld world(ranks, timeout);
    std::mutex mutex;
    std::exception_ptr first_error;
    const auto run_rank = [&](int rank) {
        const std::unique_ptr<Communicator> comm = world.communicator(rank);
        const auto fail = [&](const std::string& reason) {
            {
                const std::lock_guard<std::mutex> lock(mutex);
                if (!first_error) first_error = std::current_exception();
            }
            comm->abort(reason, ExitCode::kUnavailable);
        };
        try {
            body(*comm);
        } catch (const std::exception& error) {
            fail(error.what());
        } catch (...) {
            fail("unknown error");
        }
    };
    {
        std::vector<std::jthread> threads;
        threads.reserve(static_cast<std::size_t>(ranks) - 1);
        try {
            for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
        } catch (const std::system_error& error) {
            const std::string reason = fmt::format("could not start {} threads, one a rank: {}", ranks, error.what());
            world.communicator(0)->abort(reason, ExitCode::kUnavailable);
            threads.clear();
            throw UnavailableError(reason);
        }
        run_rank(0);
    }
    if (first_error) std::rethrow_exception(first_error);
}

}  // namespace fenwick
