#include "starling/topology/schedules.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/topology/families.h"

namespace starling {

namespace {

const Families& families() {
  static const Families all = all_families();
  return all;
}

std::string example_of(const Family& family) {
  return std::string(family.example.empty() ? family.name : family.example);
}

constexpr std::string_view kOfSchedules = ":SCHEDULE";

// Whether `name` is one of a family of schedules over schedules. `schedule` is then the part after
// the colon.
bool over_schedule(std::string_view name, const Family& family, std::string& schedule) {
  const std::string_view pattern = family.name;
  const std::string_view stem =
      pattern.substr(0, pattern.size() - kOfSchedules.size() + 1);  // with its colon
  if (!pattern.ends_with(kOfSchedules) || !name.starts_with(stem)) return false;
  schedule = name.substr(stem.size());
  if (schedule.empty() || schedule.find(':') != std::string::npos) {
    throw UsageError(
        fmt::format("schedule '{}': {} must be followed by one schedule without a colon, as in {}", name,
                    stem, example_of(family)));
  }
  return true;
}

// The number in `name` if it is one of `family`, and 0 for a family without a number. Nothing if it
// is none.
std::optional<int> number_in(std::string_view name, const Family& family) {
  const std::string_view pattern = family.name;
  const std::size_t stem = pattern.find_last_of('-') + 1;
  const bool numbered = stem > 0 && std::isupper(static_cast<unsigned char>(pattern[stem])) != 0;
  if (!numbered) return name == pattern ? std::optional(0) : std::nullopt;
  if (!name.starts_with(pattern.substr(0, stem))) return std::nullopt;
  const std::string_view digits = name.substr(stem);
  const auto number = parse_number<int>(digits);
  if (!number || *number < family.least) {
    throw UsageError(fmt::format("schedule '{}': {} needs a whole number {} of at least {}, as in {}", name,
                                 pattern, pattern.substr(stem), family.least, example_of(family)));
  }
  return number;
}

}  // namespace

std::vector<ScheduleInfo> known_schedules() {
  std::vector<ScheduleInfo> infos;
  for (const Family& family : families())
    infos.push_back({std::string(family.name), example_of(family), std::string(family.summary)});
  return infos;
}

Schedule make_schedule(const std::string& name, int n, int workers_per_node) {
  Schedule schedule = make_shares(name, n, workers_per_node);
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    if (schedule.rounds[r].balanced()) continue;
    throw UsageError(fmt::format(
        "topology \"{}\" is for push-sum alone: in round {} some workers give more than they take", name, r));
  }
  return schedule;
}

Schedule make_shares(const std::string& name, int n, int workers_per_node) {
  if (n < 1) throw UsageError(fmt::format("schedule {} needs at least 1 worker, got {}", name, n));
  if (workers_per_node < 1) {
    throw UsageError(
        fmt::format("schedule {} needs at least 1 worker per node, got {}", name, workers_per_node));
  }
  for (const Family& family : families()) {
    ScheduleRequest asked{n, workers_per_node, 0, ""};
    if (!over_schedule(name, family, asked.schedule)) continue;
    if (n > 1) return {name, family.rounds(asked)};
    return {name, make_schedule(asked.schedule, 1).rounds};  // the inner schedule may be unknown
  }
  if (name.ends_with(".toml") || name.ends_with(".json")) return {name, custom(name, n)};
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.emplace_back(family.name);
    const auto number = number_in(name, family);
    if (!number) continue;
    Schedule schedule{name, n == 1 ? Rounds{} : family.rounds({n, workers_per_node, *number, ""})};
    // One worker: a round without neighbours.
    if (schedule.rounds.empty()) schedule.rounds.emplace_back(n);
    return schedule;
  }
  std::vector<std::string> candidates = names;
  for (const Family& family : families()) candidates.push_back(example_of(family));
  // "base3" means "base-3".
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  const std::string dashed = std::string(name).insert(digits, "-");
  const bool is_dashed =
      digits > 0 && digits < name.size() &&
      std::ranges::any_of(
          families(), [&](const Family& family) { return number_in(dashed, family).has_value(); });
  const std::string meant =
      is_dashed ? fmt::format(", did you mean {}?", dashed) : did_you_mean(name, candidates);
  throw UsageError(fmt::format("unknown schedule '{}'{}: known are {}, and files that end in .toml or .json",
                               name, meant, fmt::join(names, ", ")));
}

void check_lasting_edges(const Schedule& schedule, const std::string& who) {
  const std::size_t rounds = schedule.rounds.size();
  if (rounds == 1 && schedule.rounds.front().symmetric()) return;
  throw UsageError(fmt::format(
      "{} needs a topology of one round that is symmetric, such as ring, torus or complete: \"{}\" {}", who,
      schedule.name, rounds == 1 ? "is not symmetric" : fmt::format("has {} rounds", rounds)));
}

void check_symmetric_rounds(const Schedule& schedule, const std::string& who) {
  if (std::ranges::all_of(schedule.rounds, &Graph::symmetric)) return;
  throw UsageError(
      fmt::format("{} needs a topology of symmetric rounds, such as base-2, ring or complete: \"{}\" is not "
                  "symmetric",
                  who, schedule.name));
}

}  // namespace starling
