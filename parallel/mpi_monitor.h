// Watches over the ranks of an MPI world: each rank tells its right neighbour that it is there, and what it is doing.
//
// rank p  --beat(step)-->  rank (p + 1) mod P      ten times a second; a rank sends one, whatever P
//
// A rank that is killed or stopped falls silent; its right neighbour says so, by name, and ends the world. A slow rank
// is not silent: its monitor is a thread of its own.
#pragma once

#include <chrono>
#include <memory>

#include "parallel/mpi_communicator.h"

namespace fenwick {

class MpiMonitor {
public:
    /// Collective, as is the destructor. Watches from now on. `timeout`: a rank that is silent for so long is lost; it
    /// is noticed early enough for the world to have ended by then. A lost rank ends all processes with exit code 75
    /// where `comm.status()` says that progress is saved, else 69. A world of one rank has no neighbours.
    MpiMonitor(MpiCommunicator& comm, std::chrono::milliseconds timeout);
    /// Waits for the left neighbour's farewell, unless an exception passes.
    ~MpiMonitor();
    MpiMonitor(const MpiMonitor&) = delete;
    MpiMonitor& operator=(const MpiMonitor&) = delete;

private:
    class Ring;
    std::unique_ptr<Ring> ring_;
    int exceptions_;
};

}  // namespace fenwick
