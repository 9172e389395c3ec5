// Memory that neighbours on this host may map and read: memfds, which have no name, so that nothing of them is left behind
// in whatever way a process ends. Whoever has mapped one keeps it, even where its maker has died.
//
//   segment   one memfd: large (Arena's segment_bytes) and empty, it takes memory as buffers are cut from it
//   sealed    it can neither shrink, so that nobody who has mapped it is killed when he reads it, nor grow, nor be
//             written to by anybody but its maker
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
#include "starling/transport/buffer.h"

namespace starling::mapped {

// The maker's end.
class Arena {
 public:
  explicit Arena(std::size_t segment_bytes) : segment_bytes_(segment_bytes) {}

  // One more segment, before it is needed. Where there is none to be had, make() finds out.
  void add();
  // A buffer of its own pages, whose memory is really there; nothing where the system does not give it (trouble() says
  // why). The segment lives as long as its buffers. On any thread, as all that follows.
  std::unique_ptr<Buffer> make(std::size_t size);
  std::string trouble() const;

  struct Place {
    std::uint32_t segment = 0;  // counted from 0
    std::uint64_t offset = 0;
  };
  std::optional<Place> find(std::span<const std::byte> bytes) const;

  // How many segments there are; the descriptor of one of them, as long as the arena lives.
  std::size_t segments() const;
  int descriptor(std::size_t segment) const;

 private:
  struct Segment;
  std::shared_ptr<Segment> add_segment(std::size_t size);

  const std::size_t segment_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Segment>> segments_;
  std::string trouble_;
};

// The reader's end: all of one segment of a peer, to be read only.
class Mapping {
 public:
  // Nothing, and why, where it is no sealed memory. What the peer says of its size is not asked.
  static std::shared_ptr<const Mapping> of(Descriptor memory, std::string& why);
  ~Mapping();
  Mapping(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace starling::mapped
