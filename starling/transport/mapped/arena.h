// Memory that neighbours on this host may map and read. It consists of memfds, which have no name,
// so nothing of them remains after a process ends in any way. A mapping stays valid even if its
// maker has died.
//
//   region    one memfd. It is large (Arena's region_bytes) and empty at first. It takes memory as
//             buffers are cut from it
//   sealed    it cannot shrink, so no reader is killed by a read; it cannot grow; and only its
//             maker can write to it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/core/descriptor.h"
#include "starling/core/with_lock.h"
#include "starling/transport/buffer.h"

namespace starling::mapped {

// The maker's end.
class Arena {
 public:
  explicit Arena(std::size_t region_bytes) : region_bytes_(region_bytes) {}

  // Adds one region in advance. If the system has none to give, make() finds out.
  void add();
  // A buffer with pages of its own, whose memory is already allocated. Nothing if the system
  // refuses (trouble() gives the reason). The region lives as long as its buffers. May be called
  // on any thread, like all functions below.
  std::unique_ptr<Buffer> make(std::size_t size);
  std::string trouble() const {
    return with_lock(mutex_, [this] { return trouble_; });
  }

  struct Place {
    std::uint32_t region = 0;  // counted from 0
    std::uint64_t offset = 0;
  };
  std::optional<Place> find(std::span<const std::byte> bytes) const;

  // The number of regions, and the descriptor of one of them, valid as long as the arena lives.
  std::size_t regions() const {
    return with_lock(mutex_, [this] { return regions_.size(); });
  }
  int descriptor(std::size_t region) const;

 private:
  struct Region;
  std::shared_ptr<Region> add_region(std::size_t size);

  const std::size_t region_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Region>> regions_;
  std::string trouble_;
};

// The reader's end: one whole region of a peer, read-only.
class Mapping {
 public:
  // Nothing, with the reason, if it is not sealed memory. The size comes from the kernel, not from
  // the peer.
  static std::shared_ptr<const Mapping> of(Descriptor memory, std::string& why);
  ~Mapping();
  Mapping(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace starling::mapped
