#include "starling/kernels/cuda/table.h"

#include <cstring>
#include <type_traits>

#include "starling/kernels/cuda/program.h"

namespace starling::kernels::cuda {
namespace {

constexpr std::size_t kAligned = 16;

// The end of a table of this size, where the next one may begin.
std::size_t end_of(std::size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

template <class T>
std::size_t size_of(const std::vector<T>& all) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAligned);
  return end_of(all.size() * sizeof(T));
}

template <class T>
void copy(const std::vector<T>& all, std::byte* to) {
  if (!all.empty()) std::memcpy(to, all.data(), all.size() * sizeof(T));
}

}  // namespace

void Table::add(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g,
                RuleState state, const WireBlock& outgoing, std::size_t n) {
  const auto first = static_cast<std::uint32_t>(mixes_.size());
  mixes_.insert(mixes_.end(), mixes.begin(), mixes.end());
  std::visit(
      [&]<class Rule>(const Rule& rule) {
        std::get<std::vector<Segment<Rule>>>(rows_).push_back(
            {rule, x, g, state, outgoing, n, first, static_cast<std::uint32_t>(mixes.size()), 0});
      },
      step);
}

std::size_t Table::bytes() const {
  return std::apply(
      [&](const auto&... rows) { return ((size_of(mixes_) + size_of(renewals_)) + ... + size_of(rows)); },
      rows_);
}

std::vector<Table::Launch> Table::write(std::byte* to) {
  constexpr std::size_t kRules = std::tuple_size_v<decltype(rows_)>;
  static_assert(kRules + 1 == kUpdateEntries.size());
  std::vector<Launch> launches;
  copy(mixes_, to);
  std::size_t offset = size_of(mixes_);
  const auto one = [&](std::size_t entry, auto& rows) {
    const std::uint32_t blocks = lay_out(rows.data(), rows.size());
    copy(rows, to + offset);
    if (blocks != 0) launches.push_back({entry, offset, static_cast<std::uint32_t>(rows.size()), blocks});
    offset += size_of(rows);
  };
  one(kRules, renewals_);
  std::size_t rule = 0;
  std::apply([&](auto&... rows) { (one(rule++, rows), ...); }, rows_);
  return launches;
}

}  // namespace starling::kernels::cuda
