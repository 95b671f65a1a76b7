#include "worker/gpu_choice.h"

#include <fmt/format.h>

#include <map>
#include <span>

#include "core/errors.h"
#include "parallel/collectives.h"

namespace fenwick {
namespace {

std::string uuid_text(const std::array<unsigned char, 16>& uuid) {
    std::string text = "GPU-";
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", uuid[i]);
    }
    return text;
}

}  // namespace

int device_of_local_rank(int local_rank, int visible) {
    if (visible < 1) {
        throw UnavailableError("no GPU is visible to this process (CUDA_VISIBLE_DEVICES may hide some)");
    }
    return local_rank % visible;
}

std::vector<GpuFacts> share_gpu_facts(Communicator& comm, const GpuFacts& own) {
    std::vector<GpuFacts> all(static_cast<std::size_t>(comm.size()));
    const std::vector<std::int64_t> sizes(all.size(), sizeof(GpuFacts));
    std::span<std::byte> at_root;
    if (comm.rank() == 0) at_root = std::as_writable_bytes(std::span(all));
    gather_to_root(comm, std::as_bytes(std::span(&own, 1)), sizes, at_root);
    broadcast(comm, std::as_writable_bytes(std::span(all)));
    return all;
}

std::string gpu_problem(const std::vector<GpuFacts>& ranks) {
    std::map<std::array<unsigned char, 16>, std::size_t> taken;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const GpuFacts& facts = ranks[rank];
        if (!facts.usable) return fmt::format("rank {} on {}: {}", rank, facts.host.data(), facts.problem.data());
        const auto [other, is_new] = taken.emplace(facts.uuid, rank);
        if (!is_new) {
            return fmt::format(
                "ranks {} and {} on {} would share one GPU (PCI {}, UUID {}): start at most one rank for each GPU of a "
                "host, and let every rank see its host's GPUs",
                other->second, rank, facts.host.data(), facts.pci_id.data(), uuid_text(facts.uuid));
        }
    }
    return {};
}

std::string gpu_text(int rank, const GpuFacts& facts) {
    return fmt::format("rank {}: GPU {} of {}, {}, PCI {}, UUID {}", rank, facts.device, facts.host.data(),
                       facts.name.data(), facts.pci_id.data(), uuid_text(facts.uuid));
}

}  // namespace fenwick
