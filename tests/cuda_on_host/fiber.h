// The smallest switch between stacks on x86-64 (System V): callee-saved registers and the stack pointer.
#pragma once
#include <cstddef>
#include <cstdint>
#if !defined(__x86_64__)
#error "cuda_on_host: x86-64 only"
#endif
extern "C" void cuda_on_host_switch(void** save, void* load);
asm(R"(
.text
.globl cuda_on_host_switch
.type cuda_on_host_switch,@function
cuda_on_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_on_host_switch,.-cuda_on_host_switch
)");
// A stack whose first switch-to calls `entry` (which must never return).
inline void* cuda_on_host_prepare(void* stack, std::size_t bytes, void (*entry)()) {
    auto top = reinterpret_cast<std::uintptr_t>(stack) + bytes;
    top &= ~std::uintptr_t{15};
    auto* sp = reinterpret_cast<void**>(top);
    *--sp = nullptr;  // where a return address of `entry` would lie: aligns as after a call
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
