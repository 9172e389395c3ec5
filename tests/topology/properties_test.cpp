// Properties of every schedule and every world size, over random ones. Graphs only: no property
// builds large SVDs.
#include <regex>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "starling/topology/spectrum.h"
#include "tests/refusal.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

struct Request {
  std::string name;
  int n;
  int workers_per_node;
};

Request any_request() {
  const std::vector<ScheduleInfo> known = known_schedules();
  Request request;
  const ScheduleInfo& info = known[*rc::gen::inRange<size_t>(0, known.size())];
  request.name = info.example;
  const size_t stem = info.name.size() - 1;
  if (info.name.ends_with("-K")) request.name.replace(stem, 1, std::to_string(*rc::gen::inRange(2, 12)));
  request.workers_per_node = *rc::gen::inRange(1, 9);
  request.n = *rc::gen::inRange(1, 130);
  // Half of the time a multiple of the node, so that schedules of nodes occur too.
  if (*rc::gen::arbitrary<bool>()) request.n = request.workers_per_node << (request.n % 5);
  return request;
}

RC_GTEST_PROP(Properties, EveryRoundIsAValidMixingMatrix, ()) {
  const Request request = any_request();
  const auto schedule = schedule_if_any(request.name, request.n, request.workers_per_node);
  RC_PRE(schedule.has_value());
  RC_ASSERT(!schedule->rounds.empty());
  for (const Graph& round : schedule->rounds) {
    RC_ASSERT(round.workers() == request.n);
    for (int i = 0; i < request.n; ++i) {
      int before = -1;
      for (const Neighbour& j : round.neighbours[i]) {
        RC_ASSERT(before < j.rank && j.rank < request.n && j.rank != i);
        RC_ASSERT(0 < j.weight && j.weight < 1);
        before = j.rank;
      }
      RC_ASSERT(round.self_weight(i) > 0);
    }
    RC_ASSERT(doubly_stochastic(mixing_matrix(round)));
    const bool directed = request.name == "one-peer-exponential-directed" ||
                          request.name == "static-exponential" || request.name.starts_with("n-peer-") ||
                          request.name.starts_with("d-equistatic") || request.name.starts_with("od-equidyn");
    RC_ASSERT(directed || round.symmetric());
  }
}

RC_GTEST_PROP(Properties, BaseIsExactShortAndKeepsToItsPeers, ()) {
  const int n = *rc::gen::inRange(2, 200);
  const int K = *rc::gen::inRange(2, 12);
  const Schedule schedule = make_schedule("base-" + std::to_string(K), n);
  RC_ASSERT(averaging(period_product(schedule)));
  RC_ASSERT(static_cast<double>(schedule.rounds.size()) <= 2 * std::log(n) / std::log(K) + 2);
  for (const Graph& round : schedule.rounds) RC_ASSERT(most_peers(round) < K);
}

RC_GTEST_PROP(Properties, TheNearestWorldsThatAnErrorNamesDoWork, ()) {
  Request request;
  request.name = *rc::gen::element<std::string>(
      "one-peer-ring", "one-peer-exponential", "alternating-exp-ring", "hierarchical:ring",
      "inner-outer:ring", "hypercube", "hyper-hypercube-2", "hyper-hypercube-3", "hyper-hypercube-5");
  request.workers_per_node = *rc::gen::inRange(1, 9);
  request.n = *rc::gen::inRange(2, 130);
  const std::string message =
      refusal<UsageError>([&] { make_schedule(request.name, request.n, request.workers_per_node); });
  if (message == "accepted") return;  // valid as it is
  std::smatch found;
  RC_ASSERT(
      std::regex_search(message, found, std::regex("the nearest (?:is|are) (\\d+)(?: and (\\d+))? \\(")));
  const int below = std::stoi(found[1]);
  const int above = found[2].matched ? std::stoi(found[2]) : below;
  make_schedule(request.name, below, request.workers_per_node);
  make_schedule(request.name, above, request.workers_per_node);
  RC_ASSERT(above > request.n);
  RC_ASSERT(below < request.n || !found[2].matched);
  for (int between = below + 1; between < above; ++between) {
    RC_ASSERT_THROWS_AS(make_schedule(request.name, between, request.workers_per_node), UsageError);
  }
}

}  // namespace
}  // namespace starling
