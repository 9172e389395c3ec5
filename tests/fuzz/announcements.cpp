// The messages that announce a payload elsewhere: in shared memory, or in pieces by a process group.
// Each is read as it is, and with a frame that a peer with the token could send.
#include <algorithm>
#include <vector>

#include "starling/transport/c10d/piece.h"
#include "starling/transport/mapped/lies_at.h"
#include "tests/fuzz/sealed.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {
namespace {

void announce(std::span<const std::byte> bytes) {
  if (const auto said = mapped::LiesAt::decode(bytes)) {
    check(std::ranges::equal(said->encode(), bytes), "a place that is two");
    static const std::vector<std::byte> memory(1 << 16);
    if (const auto place = said->in(memory)) {
      check(place->size() == said->frame.total, "another length");
      check(place->data() >= memory.data() && place->data() + place->size() <= memory.data() + memory.size(),
            "a place outside");
    }
  }
  if (const auto piece = Piece::decode(bytes)) {
    check(std::ranges::equal(piece->encode(), bytes), "a piece that is two");
    if (piece->lies_within()) {
      check(piece->length > 0 && piece->length <= Piece::kMaxLength, "a wrong length");
      const std::uint64_t end = piece->frame.offset + piece->length;
      check(end > piece->frame.offset && end <= piece->frame.total, "a piece outside");
    }
    check(!Tags(3).has(piece->tag) || (piece->tag >> 31) == 0, "a tag that is no int");
  }
}

}  // namespace

void read(std::string_view bytes) {
  const auto given = std::as_bytes(std::span(bytes));
  announce(given);
  std::vector<std::byte> whole(given.begin(), given.end());
  whole.resize(Piece::kBytes);
  Header head{};
  std::copy_n(whole.begin(), head.size(), head.begin());
  std::ranges::copy(sealed(head), whole.begin());
  announce(whole);
}

}  // namespace starling::fuzz
