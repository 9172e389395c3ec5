// The unit of everything that crosses an edge: a fixed header of 64 bytes, then `length` bytes of
// payload. All integers are little-endian. The receiver believes no claim of a frame before the
// checksums agree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "starling/core/crc32c.h"

namespace starling {

// The sender says, in the first person:
enum class FrameType : std::uint8_t {
  // An edge's exchanges (exchange/edge.h).
  data = 1,       // one chunk of a wire block; value = the word of its mask (kernels/mask.h)
  ack = 2,        // vote: my block is ready and yours has been checked
  abort = 3,      // in place of a vote; value = the round that I start next if I went on, else 0
  skip = 4,       // rounds below `round` that I have not started will never come from me
  resume = 5,     // you were absent; value = the round that I start next
  query = 6,      // after a reconnect: how did this exchange end for you?
  outcome = 7,    // answer to query; value = 1 committed, 0 not
  heartbeat = 8,  // I am alive; value = the time by my clock, in any unit; step = 1: I pause
  leave = 9,      // I am done; do not wait for me; value: 1 after an error, else 0
  // You went on without me and I am back: wait for me again. A resume with value 0 answers: you
  // need not jump.
  where = 10,
  ready = 11,  // my block is written: send yours
  echo = 12,   // answer to a heartbeat, with its value
  // Your block jumps (exchange/jump_guard.h); value = the bits of its distance from mine, a double;
  // step = 1: those of others do not.
  jumps = 13,
  // Exact averages (exchange/average.h).
  join = 16,   // I take part in average `round`, attempt `block`; payload: the participants I see
  share = 17,  // one chunk of my partial average
  done = 18,   // I have the result of this attempt
  quit = 19,   // I do not take part any longer
  renew = 20,  // come to a renewal before your next step; value = the operations that I have begun
  // The mean of a group (exchange/group.h).
  part = 24,       // one chunk of my block's shard that you own; value as in data
  mean = 25,       // one chunk of the mean of my shard; value as in data
  group_ack = 26,  // as ack, abort, query, outcome and ready above, for a group's swap
  group_abort = 27,
  group_query = 28,
  group_outcome = 29,
  group_ready = 30,
  group_got = 31,  // your part (value = 0) or mean (1) has come, used or not: send the next
  // Memory that the peer reads in place (transport/mapped/mapped.h). No handler sees these frames.
  invitation = 32,  // come through my door
  handed = 33,      // memory lies at your door
  mapped = 34,      // I have mapped it, or I cannot
  lies_at = 35,     // a whole payload, and where it lies
  // Averages of pairs (gossip/pairing.h): `round` is the average's number on this edge. Payload:
  // how many gradients each worker has made, as far as I know, 8 bytes each.
  ask = 48,     // will you average with me now?
  answer = 49,  // value = 1 yes, 0 I am busy
  // Payloads by a process group (transport/c10d/group_transport.h). No handler sees these frames.
  piece = 40,  // a part of a payload comes by the group
  // Life `round` of me has asked the group for your pieces up to `value`; step = 1: I take no more.
  taken = 41,
};

// Whether the payload is values of parameters or gradients, and no word between workers.
constexpr bool carries_values(FrameType type) {
  return type == FrameType::data || type == FrameType::share || type == FrameType::part ||
         type == FrameType::mean;
}

struct Frame {
  static constexpr std::uint32_t kMagic = 0x4c525453;  // "STRL"
  static constexpr std::size_t kBytes = 64;
  static constexpr std::size_t kMaxPayload =
      256 * 1024;  // of one frame on the wire: control frames overtake chunks

  FrameType type{};
  std::uint8_t dtype = 0;  // wire format of the payload (data)
  std::uint64_t round = 0;
  std::uint32_t block = 0;
  std::uint32_t step = 0;    // average: round within the period
  std::uint64_t value = 0;   // as the type says
  std::uint64_t total = 0;   // bytes of the whole block that this chunk is a part of
  std::uint64_t offset = 0;  // where this chunk lies in it
  std::uint32_t length = 0;  // payload bytes that follow
  std::uint32_t payload_crc = 0;

  // Writes the header, with its own CRC32C at the end.
  std::array<std::byte, kBytes> encode() const;
  // Returns nothing if the magic, the header's checksum, the type or the length is wrong: the
  // stream is out of step, and the connection must be closed.
  static std::optional<Frame> decode(std::span<const std::byte, kBytes> bytes);
};

}  // namespace starling
