// Which GPU each rank takes, and whether together that makes sense. Pure, but for the exchange of facts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace fenwick {

/// What a rank knows of the GPU that it would take. Small and without pointers: it travels.
struct GpuFacts {
    std::int32_t device = -1;  ///< CUDA's number
    bool usable = false;
    std::array<unsigned char, 16> uuid{};
    std::array<char, 32> pci_id{};
    std::array<char, 64> name{};
    std::array<char, 64> host{};
    std::array<char, 256> problem{};  ///< when not usable
};

/// The rule: local rank modulo the GPUs that are visible to the process. With one visible GPU per task (as Slurm gives
/// them) that is device 0, whatever the local rank. Throws UnavailableError when none is visible.
[[nodiscard]] int device_of_local_rank(int local_rank, int visible);

/// Collective. The facts of all ranks, in order, on every rank.
[[nodiscard]] std::vector<GpuFacts> share_gpu_facts(Communicator& comm, const GpuFacts& own);

/// Why these ranks cannot compute on these GPUs together: the first rank without one, or two ranks with the same one
/// (by UUID: its number and even its PCI id may differ between containers). Empty: they can.
[[nodiscard]] std::string gpu_problem(const std::vector<GpuFacts>& ranks);

/// "rank 1: GPU 1 of node7, NVIDIA H200, PCI 00000000:a1:00.0, UUID 6f...": for the log.
[[nodiscard]] std::string gpu_text(int rank, const GpuFacts& facts);

}  // namespace fenwick
