// Memory that blocks are written to and sent from, and what keeps it alive.
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

// Bytes to send or to read, and what keeps them alive until they are sent, dropped or read.
struct Payload {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// A stretch of memory: on the heap, or of whoever else owns it.
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

// Of a buffer of floats.
inline std::span<float> floats_of(Buffer& buffer) {
  return {reinterpret_cast<float*>(buffer.data()), buffer.size() / sizeof(float)};
}

// All of a buffer, or a part of it.
inline Payload payload_of(const std::shared_ptr<const Buffer>& buffer) { return {buffer, *buffer}; }
inline Payload payload_of(const std::shared_ptr<const Buffer>& buffer, std::size_t from, std::size_t size) {
  return {buffer, std::span<const std::byte>(*buffer).subspan(from, size)};
}

// Buffers that go back to their pool when the last holder lets go, on whichever thread that happens.
class BufferPool {
 public:
  using Make = std::function<std::unique_ptr<Buffer>(std::size_t size)>;

  BufferPool() : BufferPool([](std::size_t size) { return std::make_unique<Buffer>(size); }) {}
  explicit BufferPool(Make make) : make_(std::move(make)) {}

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
  std::shared_ptr<Free> free_ = std::make_shared<Free>();  // outlives the pool while buffers are out
};

}  // namespace starling
