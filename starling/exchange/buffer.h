// Buffers of floats that go back to their pool when the last holder lets go, on whichever thread that happens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace starling {

using Buffer = std::vector<float>;

inline std::span<const std::byte> bytes_of(const Buffer& buffer) { return std::as_bytes(std::span(buffer)); }

// Of whole floats as they came over a wire.
inline bool all_finite(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: infinite or not a number
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    bad |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return bad == 0;
}

class BufferPool {
 public:
  // A buffer of `size` floats; what is in it is whatever was in it.
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
