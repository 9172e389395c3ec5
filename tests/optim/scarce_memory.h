// The memory of torch's tensors on the CPU, which may run out. Freed memory stays until
// free_kept(): the mock GPU (tests/kernels/cuda/other_driver.cpp) may read it later than a real
// one, whose memory is used again in the order of its work.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace starling {

// While it lives, tensors on the CPU come from it.
class ScarceMemory final : public c10::Allocator {
 public:
  ScarceMemory() { c10::SetCPUAllocator(this); }
  ~ScarceMemory() override {
    fail_after(-1);
    c10::SetCPUAllocator(all_);
    free_kept();
  }
  ScarceMemory(const ScarceMemory&) = delete;

  // After so many more tensors of this thread there is no memory for one. Below 0: there always is.
  void fail_after(int tensors) { left_ = tensors; }
  void free_kept() const {
    const std::lock_guard lock(mutex_);
    for (void* const memory : kept()) all_->raw_deallocate(memory);
    kept().clear();
  }
  // Bytes of all tensors of this thread, those that were freed too.
  std::size_t taken() const { return taken_; }

  c10::DataPtr allocate(std::size_t bytes) override {
    const bool enough = left_ != 0;
    if (left_ >= 0) --left_;
    TORCH_CHECK_WITH(OutOfMemoryError, enough, "no memory for ", bytes, " bytes");
    taken_ += bytes;
    void* const memory = all_->raw_allocate(bytes);
    return {memory, memory, &keep, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static std::vector<void*>& kept() {
    static auto* const all = new std::vector<void*>;  // some tensors live as long as the process
    return *all;
  }
  static void keep(void* memory) {
    const std::lock_guard lock(mutex_);
    kept().push_back(memory);
  }

  static inline std::mutex mutex_;  // guards what tensors have freed
  c10::Allocator* const all_ = c10::GetCPUAllocator();
  static inline thread_local int left_ = -1;
  static inline thread_local std::size_t taken_ = 0;
};

}  // namespace starling
