// Memory that blocks are written to and sent from, with its owner.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace starling {

// Bytes to send or to read. The owner keeps them alive until they are sent, dropped or read.
struct Payload {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// A stretch of memory, on the heap or of another owner.
class Buffer {
 public:
  explicit Buffer(std::size_t size) : Buffer(std::shared_ptr<std::byte[]>(new std::byte[size]), size) {}
  Buffer(std::shared_ptr<void> owner, std::span<std::byte> bytes) : owner_(std::move(owner)), bytes_(bytes) {}

  std::size_t size() const { return bytes_.size(); }
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  std::byte* begin() { return data(); }
  std::byte* end() { return data() + size(); }
  const std::byte* begin() const { return data(); }
  const std::byte* end() const { return data() + size(); }

 private:
  Buffer(const std::shared_ptr<std::byte[]>& heap, std::size_t size)
      : owner_(heap, heap.get()), bytes_(heap.get(), size) {}

  std::shared_ptr<void> owner_;
  std::span<std::byte> bytes_;
};

// The floats of a buffer.
inline std::span<float> floats_of(Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

// A whole buffer, or a part of it.
inline Payload payload_of(const std::shared_ptr<const Buffer>& buffer) { return {buffer, *buffer}; }
inline Payload payload_of(const std::shared_ptr<const Buffer>& buffer, std::size_t from, std::size_t size) {
  return {buffer, std::span<const std::byte>(*buffer).subspan(from, size)};
}

// Buffers that return to their pool when the last holder releases them, on any thread.
class BufferPool {
 public:
  using Make = std::function<std::unique_ptr<Buffer>(std::size_t size)>;

  BufferPool() : BufferPool([](std::size_t size) { return std::make_unique<Buffer>(size); }) {}
  explicit BufferPool(Make make) : make_(std::move(make)) {}

  // A buffer of `size` bytes. Its content is undefined.
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
    if (!buffer) buffer = make_(size);
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
  Make make_;
  // Outlives the pool while buffers are out.
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace starling
