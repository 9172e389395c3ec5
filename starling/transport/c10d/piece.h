// A piece of a payload that a process group carries (group_transport.h), and the tags that name
// pieces in the group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "starling/transport/announcement.h"

namespace starling {

// The announcement of a piece. It goes over TCP, as the payload of a control frame.
struct Piece {
  static constexpr std::size_t kBytes = Announcement::kBytes;
  static constexpr std::size_t kMaxLength = 4 << 20;

  Frame frame;  // of the whole payload; its offset is the piece's
  std::uint64_t sequence = 0, tag = 0, length = 0, crc = 0;

  std::vector<std::byte> encode() const { return Announcement{frame, {sequence, tag, length, crc}}.encode(); }
  static std::optional<Piece> decode(std::span<const std::byte> bytes) {
    const auto said = Announcement::decode(bytes);
    if (!said) return std::nullopt;
    const auto& [sequence, tag, length, crc] = said->numbers;
    return Piece{said->frame, sequence, tag, length, crc};
  }
  bool lies_within() const {
    return length > 0 && length <= kMaxLength && frame.offset <= frame.total &&
           length <= frame.total - frame.offset;
  }
};

// The tags lie above those that people choose in a process group. `call` tells the worlds of one
// group apart.
class Tags {
 public:
  explicit Tags(std::int64_t call) : base_(kFirst + static_cast<int>(call % kWorlds) * kEach) {}
  int next() { return base_ + static_cast<int>(used_++ % kEach); }
  bool has(std::uint64_t tag) const {
    return tag >= static_cast<std::uint64_t>(base_) && tag < static_cast<std::uint64_t>(base_) + kEach;
  }

 private:
  static constexpr int kFirst = 1 << 30, kWorlds = 64, kEach = 1 << 24;
  const int base_;
  std::atomic<std::uint32_t> used_ = 0;
};

}  // namespace starling
