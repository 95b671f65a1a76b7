// Main of the GPU tests: Catch2 where there is a GPU, exit code 77 (CTest: skipped) where there is none.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <iostream>

#include "core/cuda/device_info.h"

int main(int argc, char** argv) {
    const fenwick::cuda::DeviceReport report = fenwick::cuda::probe_devices(false);
    const fenwick::cuda::DeviceInfo* device = report.first_usable();
    if (device == nullptr) {
        std::cout << "skipped: " << (report.problem.empty() ? "no usable GPU" : report.problem) << "\n";
        return 77;
    }
    std::cout << "on " << device->name << ", PCI " << device->pci_id << "\n";
    return Catch::Session().run(argc, argv);
}
