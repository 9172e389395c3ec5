// A stream of frames to an inbox. Each is read as it is, and then with the magic and the checksum
// that a peer with the token would give it.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "starling/exchange/inbox.h"
#include "starling/transport/frame.h"
#include "tests/fuzz/sealed.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  constexpr std::size_t kBlock = 256;
  Inbox inbox(4, Wire::fp32);
  auto rest = std::as_bytes(std::span(bytes));
  while (rest.size() >= Frame::kBytes) {
    Header header{};
    std::copy_n(rest.begin(), header.size(), header.begin());
    rest = rest.subspan(header.size());
    if (const auto frame = Frame::decode(header)) check(frame->encode() == header, "a frame that is two");
    const auto frame = Frame::decode(sealed(header));
    if (!frame) continue;
    check(frame->length <= Frame::kMaxPayload && frame->offset + frame->length <= frame->total,
          "a wrong length");
    const SwapId id{frame->round, frame->block};
    // As links.cpp does.
    if (frame->total > kBlock || !inbox.may_take(id)) continue;
    const std::span<std::byte> place = inbox.place(id, *frame, [&] {
      auto memory = std::make_shared<std::vector<std::byte>>(frame->total);
      const std::span<std::byte> room(*memory);
      return Inbox::Room{std::move(memory), room};
    });
    const std::size_t sent = std::min<std::size_t>(rest.size(), frame->length);
    std::copy_n(rest.begin(), std::min(sent, place.size()), place.begin());
    rest = rest.subspan(sent);
    const bool sound = place.size() == frame->length;
    if (inbox.received(id, *frame, place, sound) == Inbox::Chunk::last) inbox.take(id);
    if (frame->step % 5 == 4) inbox.drop_before(frame->value);
  }
}

}  // namespace starling::fuzz
