#include "starling/optim/gradient_spans.h"

namespace starling {

GradientSpans::GradientSpans(const std::vector<Block>& blocks, Timeline& timeline)
    : blocks_(blocks),
      timeline_(timeline),
      holders_(holders_of(blocks)),
      hooks_(parameters_of(blocks), [this](std::size_t parameter) { accumulated(parameter); }) {}

void GradientSpans::accumulated(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  latest_ = Clock::now();
  if (!in_pass_ || there_[parameter]) begin_pass();  // a gradient comes twice if the last pass failed
  there_[parameter] = true;
  for (const std::size_t b : holders_[parameter]) {
    if (--missing_[b] > 0) continue;
    add(b, recorded_, latest_);
    recorded_ = latest_;
  }
}

void GradientSpans::begin_pass() {
  in_pass_ = true;
  there_.assign(holders_.size(), false);
  missing_.clear();
  for (const Block& block : blocks_) missing_.push_back(block.segments.size());
  recorded_ = latest_;
  BackwardHooks::at_end_of_pass([this] { end_pass(); });
}

void GradientSpans::end_pass() {
  const std::lock_guard lock(mutex_);
  for (std::size_t b = missing_.size(); b-- > 0;) {
    if (missing_[b] > 0) add(b, latest_, latest_);
  }
  in_pass_ = false;
  hooks_.watch();
}

void GradientSpans::add(std::size_t block, Time begin, Time end) {
  timeline_.add({.name = "gradients",
                 .block = static_cast<int>(block),
                 .step = timeline_.step(),
                 .begin = begin,
                 .end = end});
}

}  // namespace starling
