// Protects the frames that one end of a connection sends, in the order of the stream:
//
//   checked   by the CRC32C in each header, against damage. Header 64 | payload
//   sealed    by a tag of 16 bytes after each header and each payload, against damage and against
//             anybody who changes, leaves out, repeats or moves a frame.
//             Header 64 | tag 16 | payload | tag 16; no payload has no tag, and no CRC
//
// A tag is AES-256-GMAC of the bytes before it: AES-GCM with associated data alone (NIST SP
// 800-38D), because nothing is encrypted. Its nonce is the tag's number in the stream, so it fits
// at one place of one stream only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "starling/transport/frame.h"
#include "starling/transport/tcp/proof.h"

struct evp_cipher_ctx_st;

namespace starling::tcp {

class Seal {
 public:
  static constexpr std::size_t kTag = 16;
  using Tag = std::array<std::byte, kTag>;

  Seal() = default;                  // checked
  explicit Seal(const Digest& key);  // sealed, by the key of this direction (frame_key)

  bool is_sealed() const { return cipher_ != nullptr; }
  // Bytes of the tag after each header and payload.
  std::size_t tag_bytes() const { return is_sealed() ? kTag : 0; }
  std::size_t head_bytes() const { return Frame::kBytes + tag_bytes(); }

  // --- the sender's end ---
  struct Closed {
    std::array<std::byte, Frame::kBytes + kTag> head;  // head_bytes() of it
    Tag tail;                                          // after the payload: tag_bytes() of it
  };
  Closed close(Frame frame, std::span<const std::byte> payload);

  // --- the receiver's end ---
  // The frame in head_bytes(). Nothing: it is damaged or forged, and so may be all that follows.
  std::optional<Frame> open(std::span<const std::byte> head);
  // Whether this is the payload of that frame. `tail`: the tag_bytes() after it.
  bool is_intact(const Frame& frame, std::span<const std::byte> payload, std::span<const std::byte> tail);
  // Whether a tag was wrong.
  bool is_forged() const { return forged_; }

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* cipher) const;
  };
  Tag next_tag(std::span<const std::byte> bytes);
  bool is_next(std::span<const std::byte> bytes, std::span<const std::byte> tag);

  std::unique_ptr<evp_cipher_ctx_st, Free> cipher_;
  std::uint64_t tags_ = 0;  // so far in the stream
  bool forged_ = false;
};

// Both directions of one connection.
struct Seals {
  Seal out, in;
};

}  // namespace starling::tcp
