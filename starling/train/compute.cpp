#include "starling/train/compute.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "starling/core/error.h"

namespace starling {

namespace {

constexpr std::size_t kWarmUp = 10;  // steps

using Span = Timeline::Span;

double length(const Span& span) { return seconds(span.end - span.begin); }

// The spans of one step.
struct Step {
  double data = 0;
  double forward = 0;
  std::vector<Span> backward;  // passes
  std::vector<Span> gradients;
  std::vector<double> update;  // of each block
  bool ended = false;

  explicit Step(std::size_t blocks) : update(blocks) {}

  void add(const Span& span) {
    const std::string_view name = span.name;
    if (name == "data") data += length(span);
    if (name == "forward") forward += length(span);
    if (name == "backward") backward.push_back(span);
    if (name == "gradients") gradients.push_back(span);
    if (name == "mix + update") update[static_cast<std::size_t>(span.block)] += length(span);
    if (name == "optimizer step") ended = true;
  }

  // The spans of the last backward pass. They are in the order of their ends.
  std::vector<Span> last_gradients() const {
    std::vector<Span> last;
    for (const Span& span : gradients) {
      if (span.begin >= backward.back().begin) last.push_back(span);
    }
    return last;
  }

  bool whole(std::size_t blocks) const {
    return ended && forward > 0 && !backward.empty() && last_gradients().size() == blocks;
  }
};

void append(Compute& compute, const Step& step) {
  compute.data_wait.push_back(step.data);
  double before = step.forward;
  for (std::size_t pass = 0; pass + 1 < step.backward.size(); ++pass) before += length(step.backward[pass]);
  compute.forward.push_back(before);
  Time begin = step.backward.back().begin;
  for (const Span& span : step.last_gradients()) {
    compute.backward[static_cast<std::size_t>(span.block)].push_back(seconds(span.end - begin));
    begin = span.end;
  }
  for (std::size_t b = 0; b < step.update.size(); ++b) compute.update[b].push_back(step.update[b]);
}

}  // namespace

RecordedCompute recorded_compute(const std::vector<Span>& spans, const std::vector<std::int64_t>& sizes) {
  const std::size_t blocks = sizes.size();
  std::map<std::int64_t, Step> steps;
  for (const Span& span : spans) {
    if (span.peer < 0 && span.step > 0) steps.try_emplace(span.step, blocks).first->second.add(span);
  }
  std::erase_if(steps, [&](const auto& step) { return !step.second.whole(blocks); });
  if (steps.empty())
    throw Error(
        "no step is whole in the timeline, so there is nothing to profile: let the run have some steps, and "
        "log.timeline_from and log.timeline_to leave some");

  RecordedCompute recorded;
  for (const std::int64_t size : sizes)
    recorded.profile.blocks.push_back(static_cast<double>(size) * sizeof(float));
  Compute& compute = recorded.profile.compute.emplace_back();
  compute.backward.resize(blocks);
  compute.update.resize(blocks);
  auto step = std::next(steps.begin(), static_cast<std::ptrdiff_t>(std::min(kWarmUp, steps.size() / 5)));
  for (; step != steps.end(); ++step) append(compute, step->second);
  for (const Span& span : steps.rbegin()->second.last_gradients())
    recorded.order.push_back(static_cast<std::size_t>(span.block));
  return recorded;
}

Profile in_order(const Profile& profile, const std::vector<std::size_t>& order) {
  Profile sorted = profile;
  for (std::size_t place = 0; place < order.size(); ++place) {
    sorted.blocks[place] = profile.blocks[order[place]];
    for (std::size_t i = 0; i < profile.compute.size(); ++i) {
      sorted.compute[i].backward[place] = profile.compute[i].backward[order[place]];
      sorted.compute[i].update[place] = profile.compute[i].update[order[place]];
    }
  }
  return sorted;
}

}  // namespace starling
