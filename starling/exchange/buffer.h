// Buffers that go back to their pool when the last holder lets go, on whichever thread that happens.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace starling {

using Buffer = std::vector<std::byte>;

// Of a buffer of floats.
inline std::span<float> floats_of(Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}
inline std::span<const float> floats_of(const Buffer& buffer) {
  return {reinterpret_cast<const float*>(buffer.data()), buffer.size() / sizeof(float)};
}

class BufferPool {
 public:
  // A buffer of `size` bytes; what is in it is whatever was in it.
  std::shared_ptr<Buffer> take(std::size_t size) {
    std::unique_ptr<Buffer> buffer;
    {
      const std::lock_guard lock(free_->mutex);
      auto& shelf = free_->shelves[size];
      if (!shelf.empty()) {
        buffer = std::move(shelf.back());
        shelf.pop_back();
      }
    }
    if (!buffer) buffer = std::make_unique<Buffer>(size);
    return {buffer.release(), [free = free_](Buffer* back) {
              const std::lock_guard lock(free->mutex);
              free->shelves[back->size()].emplace_back(back);
            }};
  }

 private:
  struct Free {
    std::mutex mutex;
    std::map<std::size_t, std::vector<std::unique_ptr<Buffer>>> shelves;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();  // outlives the pool while buffers are out
};

}  // namespace starling
