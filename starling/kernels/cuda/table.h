// The launches of one pass over a block on a GPU: a table of segments (segment.h) for each kind of
// step, since segments may be at different steps, and a table of renewals. The host makes them of
// the device's pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <variant>
#include <vector>

#include "starling/kernels/cuda/segment.h"
#include "starling/kernels/update.h"

namespace starling::kernels::cuda {

class Table {
 public:
  // Adds a stretch of memory, with the arguments of Kernels::update.
  void add(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g, RuleState state,
           const WireBlock& outgoing, std::size_t n);
  // Adds a renewal. Renewals are launched before all updates. Sets its first_block.
  void add(const Renewal& renewal) { renewals_.push_back(renewal); }

  // The launch of one kind of step. Offsets are in bytes, from the table's begin on the device.
  struct Launch {
    std::size_t entry = 0;     // in kUpdateEntries
    std::size_t segments = 0;  // offset
    std::uint32_t count = 0;   // of segments
    std::uint32_t blocks = 0;  // number of thread blocks; not 0
  };
  // All Mixes come first: they are at offset 0.
  std::size_t bytes() const;
  // Writes bytes() bytes to `to`, for the device to copy, and returns the launches. Renewals come
  // first. The others may run in any order, since no two of their segments overlap.
  std::vector<Launch> write(std::byte* to);

 private:
  template <class>
  struct RowsOf;
  template <class... Rules>
  struct RowsOf<std::variant<Rules...>> {
    using Type = std::tuple<std::vector<Segment<Rules>>...>;
  };
  std::vector<Mix> mixes_;
  std::vector<Renewal> renewals_;
  RowsOf<Step>::Type rows_;  // in the order of Step, which is that of kUpdateEntries
};

}  // namespace starling::kernels::cuda
