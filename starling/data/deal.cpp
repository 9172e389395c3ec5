#include "starling/data/deal.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

Deal::Deal(std::int64_t items, std::int64_t batch, Drawer who, How how)
    : items_(items),
      batch_(batch),
      who_(std::move(who)),
      how_(how),
      now_{.workers = 1, .first = 0, .left = {}} {
  for (const Drawn& drawn : who_.before) {
    now_.workers = std::ssize(drawn.batches);
    if (now_.workers == 0 || now_.whole(items_, batch_) == 0)
      throw Error(fmt::format("{} examples in batches of {} cannot have been dealt to {} workers", items_,
                              batch_, now_.workers));
    for (const std::int64_t batches : drawn.batches) now_.ends.push_back(end_of(now_, batches));
    Part next = after(now_, who_.workers);
    before_.push_back(std::exchange(now_, std::move(next)));
  }
  now_.workers = who_.workers;
}

std::int64_t Deal::left_of(const Part& part, std::int64_t epoch) const {
  const std::int64_t i = epoch - part.first;
  return i < std::ssize(part.left) ? part.left[static_cast<std::size_t>(i)] : items_;
}

std::int64_t Deal::batches_of(const Part& part, std::int64_t epoch) const {
  return left_of(part, epoch) / part.workers / batch_;
}

Deal::End Deal::end_of(const Part& part, std::int64_t batches) const {
  std::int64_t epoch = part.first;
  for (; epoch < part.first + std::ssize(part.left); ++epoch) {
    const std::int64_t here = batches_of(part, epoch);
    if (batches < here) return {epoch, batches};
    batches -= here;
  }
  const std::int64_t whole = part.whole(items_, batch_);
  return {epoch + batches / whole, batches % whole};
}

std::int64_t Deal::drawn_of(const Part& part, std::size_t worker, std::int64_t epoch) const {
  const End& end = part.ends[worker];
  if (epoch == end.epoch) return end.batches;
  return epoch < end.epoch ? batches_of(part, epoch) : 0;
}

// The workers behind this part, and the items that it leaves them.
Deal::Part Deal::after(const Part& part, std::int64_t workers) const {
  constexpr std::int64_t kMostApart = 1 << 16;
  const auto [least, most] = std::ranges::minmax(part.ends, {}, &End::epoch);
  if (most.epoch - least.epoch > kMostApart)
    throw Error(
        fmt::format("two workers are {} epochs apart, more than {}", most.epoch - least.epoch, kMostApart));
  Part next{.workers = workers, .first = least.epoch, .left = {}};
  for (std::int64_t epoch = least.epoch; epoch <= most.epoch; ++epoch) {
    std::int64_t left = left_of(part, epoch);
    for (std::size_t r = 0; r < part.ends.size(); ++r) left -= drawn_of(part, r, epoch) * batch_;
    next.left.push_back(left);
  }
  return next;
}

Deal::Place Deal::place(std::int64_t number) const {
  const auto [epoch, k] = end_of(now_, number - first_number());
  const std::int64_t first =
      how_ == How::turns ? k * now_.workers + who_.rank : (who_.rank * batches_of(now_, epoch) + k) * batch_;
  return {epoch, first};
}

void Deal::leave_rest(std::int64_t epoch, std::vector<std::int64_t>& order) const {
  for (const Part& part : before_) {
    std::vector<bool> gone(order.size());
    const std::int64_t batches = batches_of(part, epoch);
    for (std::size_t r = 0; r < part.ends.size(); ++r) {
      const auto rank = static_cast<std::int64_t>(r);
      const std::int64_t items = drawn_of(part, r, epoch) * batch_;
      for (std::int64_t i = 0; i < items; ++i) {
        const std::int64_t at = how_ == How::turns ? i * part.workers + rank : rank * batches * batch_ + i;
        gone[static_cast<std::size_t>(at)] = true;
      }
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < order.size(); ++i)
      if (!gone[i]) order[kept++] = order[i];
    order.resize(kept);
  }
}

double Deal::epochs_before() const {
  auto epochs = static_cast<double>(now_.first);
  for (const std::int64_t left : now_.left)
    epochs += static_cast<double>(items_ - left) / static_cast<double>(items_);
  return epochs;
}

double Deal::batches_to(double epochs) const {
  double batches = 0;
  for (std::size_t i = 0; i < now_.left.size(); ++i) {
    const std::int64_t epoch = now_.first + static_cast<std::int64_t>(i);
    const double left = static_cast<double>(now_.left[i]) / static_cast<double>(items_);
    if (left == 0) continue;
    const double wanted = epochs - static_cast<double>(epoch) - (1 - left);  // of what is left
    batches += std::clamp(wanted / left, 0.0, 1.0) * static_cast<double>(batches_of(now_, epoch));
  }
  const auto begun = static_cast<double>(now_.first + std::ssize(now_.left));
  return batches + std::max(0.0, epochs - begun) * static_cast<double>(batches_per_epoch());
}

}  // namespace starling
