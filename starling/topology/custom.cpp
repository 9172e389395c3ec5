// A user's schedule, from a TOML file or from a JSON file with the same keys:
//
//   workers = 3          # number of workers
//   symmetric = true     # a promise that is checked: W_ij = W_ji in every round. Without it any
//                        # round may be directed
//
//   [[rounds]]           # round 0, by edges [i, j, weight]. A worker's own value keeps the rest
//   edges = [[0, 1, 0.5]]
//
//   [[rounds]]           # round 1, by the rows of W with its diagonal. A weight may be a text such
//                        # as "1/3"
//   rows = [
//     [0.5, 0.25, 0.25],
//     [0.25, 0.75, 0],
//     [0.25, 0, 0.75],
//   ]
//
// With `directed = true` in a round, an edge [i, j, weight] is the weight that i gives to j's
// value, and says nothing about j. With `weights = "metropolis-hastings"` edges are [i, j], and
// their weights come from the numbers of neighbours. With `weights = "push-sum"`, for push-sum
// only, edges are [i, j] too: i takes from j, and j divides itself evenly among all that take from
// it and itself. All other rows and columns must sum to 1 (to 1e-9), because otherwise the mean of
// all workers would move.
//
// In place of the rounds, `bandwidth = [[0, 10], [9, 0]]` holds the measured bandwidth from each
// worker to each other worker, in any unit. The rounds are then bandwidth-aware matchings
// (bandwidth_matching.cpp).
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/tree_reader.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

constexpr std::size_t kMaxFile = 1 << 20;
constexpr int kMaxWorkers = 1024;
constexpr std::size_t kMaxRounds = 1024;
constexpr double kTolerance = 1e-9;
constexpr int kMaxMatched = 256;  // workers: the matchings take O(n^3)
constexpr double kMaxRate = 1e15;
// Values of `weights`.
constexpr std::string_view kMetropolis = "metropolis-hastings", kPushSum = "push-sum";

bool is_one(double sum) { return std::abs(sum - 1) <= kTolerance; }

// "1/3"
std::optional<double> fraction(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto above = parse_number<int>(text.substr(0, slash)),
             below = parse_number<int>(text.substr(slash + 1));
  if (!above || !below || *below < 1) return std::nullopt;
  return static_cast<double>(*above) / *below;
}

// Reads one file. `where_` is its current round and row.
class GraphReader : TreeReader {
 public:
  GraphReader(const std::string& file, int n) : TreeReader(file), n_(n) {}

  Rounds read() {
    const std::string text = read_at_most(file_, kMaxFile, "topology");
    const Node root = file_.ends_with(".json") ? parse_json(text, file_) : parse_toml(text, file_);
    know_keys(root, {"workers", "symmetric", "rounds", "bandwidth"});
    const Node& workers = needed(root, "workers");
    const auto* count = workers.as<std::int64_t>();
    if (!count || *count < 1 || *count > kMaxWorkers) {
      refuse(workers.line, fmt::format("workers must be a whole number from 1 to {}", kMaxWorkers));
    }
    if (*count != n_) refuse(workers.line, fmt::format("it is for {} workers, and there are {}", *count, n_));
    promised_symmetric_ = flag(root, "symmetric");
    if (const Node* bandwidth = find(root, "bandwidth")) {
      if (find(root, "rounds")) refuse(bandwidth->line, "it needs either rounds or bandwidth");
      return from_bandwidth(*bandwidth);
    }
    const Node& rounds = needed(root, "rounds");
    const Node::Array& list = array_of(rounds, "rounds", "sections [[rounds]]");
    if (list.empty() || list.size() > kMaxRounds) {
      refuse(rounds.line, fmt::format("{} rounds, allowed are 1 to {}", list.size(), kMaxRounds));
    }
    Rounds graphs;
    for (const Node& round : list) {
      where_ = fmt::format("round {}: ", graphs.size());
      graphs.push_back(read_round(round));
    }
    return graphs;
  }

 private:
  // --- values of keys ---

  bool flag(const Node& table, std::string_view name) const {
    const Node* node = find(table, name);
    if (!node) return false;
    if (!node->as<bool>())
      refuse(node->line, fmt::format("{} must be true or false, not {}", name, node->kind()));
    return *node->as<bool>();
  }
  const Node::Array& array_of(const Node& node, std::string_view what, std::string_view elements) const {
    const auto* array = node.as<Node::Array>();
    if (!array)
      refuse(node.line, fmt::format("{} must be an array of {}, not {}", what, elements, node.kind()));
    return *array;
  }
  double weight(const Node& node) const {
    std::optional<double> value = number_in(node);
    if (const auto* text = node.as<std::string>()) value = fraction(*text);
    if (!value) {
      const auto* text = node.as<std::string>();
      refuse(node.line, fmt::format("a weight must be a number or a fraction such as \"1/3\", not {}",
                                    text ? short_of(*text) : node.kind()));
    }
    if (!(*value >= 0 && *value <= 1))
      refuse(node.line, fmt::format("weight {} must be between 0 and 1", *value));
    return *value;
  }
  int rank(const Node& node) const {
    const auto* rank = node.as<std::int64_t>();
    if (!rank) refuse(node.line, fmt::format("a worker must be a whole number, not {}", node.kind()));
    if (*rank < 0 || *rank >= n_)
      refuse(node.line, fmt::format("there is no worker {}: allowed are 0 to {}", *rank, n_ - 1));
    return static_cast<int>(*rank);
  }

  // --- one round ---

  Graph read_round(const Node& round) const {
    if (!round.as<Node::Table>())
      refuse(round.line, fmt::format("it must be a section, not {}", round.kind()));
    know_keys(round, {"edges", "directed", "weights", "rows"});
    const Node* edges = find(round, "edges");
    const Node* rows = find(round, "rows");
    if (!edges == !rows) refuse(round.line, "it needs either edges or rows");
    if (rows && find(round, "directed"))
      refuse(round.line, "directed is allowed with edges only: rows define the direction themselves");
    const Node* weights = find(round, "weights");
    if (weights) {
      const std::string name = name_of_weights(*weights, round, rows);
      Graph graph = by_degrees(*edges, name);
      if (name == kPushSum && promised_symmetric_) check_symmetric(graph, round.line);
      if (name != kPushSum) check(graph, round.line);
      return graph;
    }
    Graph graph = edges ? from_edges(*edges, flag(round, "directed")) : from_rows(*rows);
    check(graph, round.line);
    return graph;
  }

  std::string name_of_weights(const Node& weights, const Node& round, const Node* rows) const {
    const auto* name = weights.as<std::string>();
    if (!name || (*name != kMetropolis && *name != kPushSum)) {
      const std::vector<std::string> known{std::string(kMetropolis), std::string(kPushSum)};
      refuse(weights.line,
             fmt::format("weights must be \"{}\" or \"{}\", not {}{}", kMetropolis, kPushSum,
                         name ? short_of(*name) : weights.kind(), name ? did_you_mean(*name, known) : ""));
    }
    if (rows) refuse(weights.line, "weights is allowed with edges only: rows contain their weights");
    if (*name == kMetropolis && flag(round, "directed"))
      refuse(weights.line, "metropolis-hastings weights need undirected edges");
    return *name;
  }

  Graph by_degrees(const Node& edges, const std::string& name) const {
    std::set<std::pair<int, int>> pairs;
    for (const Node& edge : array_of(edges, "edges", "[worker, worker]")) {
      const auto* parts = edge.as<Node::Array>();
      if (!parts || parts->size() != 2)
        refuse(edge.line, fmt::format("with {} weights an edge must be [worker, worker]", name));
      const int i = rank((*parts)[0]), j = rank((*parts)[1]);
      if (i == j) refuse(edge.line, fmt::format("edge [{}, {}]: its ends must be two workers", i, j));
      const bool turn = name == kMetropolis && i > j;
      if (!pairs.emplace(turn ? j : i, turn ? i : j).second) {
        refuse(edge.line, fmt::format("edge [{}, {}] stands twice{}", i, j,
                                      name == kPushSum ? "" : " (it goes both ways)"));
      }
    }
    return name == kPushSum ? push_sum_shares(n_, pairs) : metropolis_hastings(n_, pairs);
  }

  Rounds from_bandwidth(const Node& bandwidth) const {
    if (n_ > kMaxMatched) {
      refuse(bandwidth.line,
             fmt::format("bandwidth is allowed for at most {} workers, but there are {}", kMaxMatched, n_));
    }
    std::vector<std::vector<double>> rates;
    const Node::Array& rows = array_of(bandwidth, "bandwidth", "rows");
    if (rows.size() != static_cast<std::size_t>(n_)) {
      refuse(bandwidth.line,
             fmt::format("bandwidth has {} rows, must have {}, one for each worker", rows.size(), n_));
    }
    for (const Node& row : rows) {
      const std::string name = fmt::format("row {} of bandwidth", rates.size());
      const Node::Array& values = array_of(row, name, "numbers");
      if (values.size() != static_cast<std::size_t>(n_)) {
        refuse(row.line,
               fmt::format("{} has {} numbers, must have {}, one for each worker", name, values.size(), n_));
      }
      std::vector<double>& rate = rates.emplace_back();
      for (const Node& value : values) {
        const std::optional<double> b = number_in(value);
        if (!b || !(*b >= 0 && *b <= kMaxRate)) {
          refuse(value.line, fmt::format("{}: a bandwidth must be a number from 0 to {:g}, not {}", name,
                                         kMaxRate, b ? fmt::format("{:g}", *b) : value.kind()));
        }
        rate.push_back(*b);
      }
    }
    try {
      return bandwidth_matching(rates);
    } catch (const UsageError& error) {
      refuse(bandwidth.line, error.what());
    }
  }

  Graph from_edges(const Node& edges, bool directed) const {
    Graph graph(n_);
    std::set<std::pair<int, int>> seen;
    for (const Node& edge : array_of(edges, "edges", "[worker, worker, weight]")) {
      const auto* parts = edge.as<Node::Array>();
      if (!parts || parts->size() != 3) refuse(edge.line, "an edge must be [worker, worker, weight]");
      const int i = rank((*parts)[0]), j = rank((*parts)[1]);
      const double w = weight((*parts)[2]);
      if (i == j) refuse(edge.line, fmt::format("edge [{}, {}]: its ends must be two workers", i, j));
      if (w == 0) refuse(edge.line, fmt::format("edge [{}, {}]: its weight must be above 0", i, j));
      if (!seen.emplace(i, j).second || (!directed && seen.contains({j, i}))) {
        refuse(edge.line, fmt::format("edge [{}, {}] stands twice{}", i, j,
                                      directed ? "" : " (it goes both ways unless directed = true)"));
      }
      directed ? add_arc(graph, i, j, w) : add_edge(graph, i, j, w);
    }
    return graph;
  }

  Graph from_rows(const Node& rows) const {
    Graph graph(n_);
    const Node::Array& list = array_of(rows, "rows", "rows");
    if (list.size() != static_cast<std::size_t>(n_)) {
      refuse(rows.line, fmt::format("{} rows, must be {}, one for each worker", list.size(), n_));
    }
    for (int i = 0; i < n_; ++i) {
      const Node& row = list[i];
      const std::string name = fmt::format("row {}", i);
      const Node::Array& weights = array_of(row, name, "weights");
      if (weights.size() != static_cast<std::size_t>(n_)) {
        refuse(row.line,
               fmt::format("{} has {} weights, must be {}, one for each worker", name, weights.size(), n_));
      }
      double sum = 0;
      for (int j = 0; j < n_; ++j) {
        const double w = weight(weights[j]);
        sum += w;
        if (i != j && w > 0) add_arc(graph, i, j, w);
      }
      if (!is_one(sum)) {
        refuse(row.line,
               fmt::format("{} sums to {}, must be 1 (a fraction may be written \"1/3\")", name, sum));
      }
    }
    return graph;
  }

  void check(const Graph& graph, int line) const {
    std::vector<double> columns(n_);
    for (int i = 0; i < n_; ++i) {
      const double self = graph.self_weight(i);
      if (self < -kTolerance) {
        refuse(line, fmt::format("row {}: the weights of its neighbours sum to {}, must be at most 1", i,
                                 1 - self));
      }
      columns[i] += self;
      for (const Neighbour& j : graph.neighbours[i]) columns[j.rank] += j.weight;
    }
    for (int j = 0; j < n_; ++j) {
      if (!is_one(columns[j])) {
        refuse(line,
               fmt::format("column {} sums to {}, must be 1: all together must take worker {}'s value once",
                           j, columns[j], j));
      }
    }
    if (promised_symmetric_) check_symmetric(graph, line);
  }

  void check_symmetric(const Graph& graph, int line) const {
    for (int i = 0; i < n_; ++i) {
      for (const Neighbour& j : graph.neighbours[i]) {
        const double back = graph.weight(j.rank, i);
        if (std::abs(j.weight - back) <= 1e-12) continue;
        refuse(line,
               fmt::format(
                   "row {}: not symmetric, as the file promises: it gives worker {} {}, and row {} gives "
                   "worker {} {}",
                   i, j.rank, j.weight, j.rank, i, back));
      }
    }
  }

  const int n_;
  bool promised_symmetric_ = false;
};

}  // namespace

Rounds custom(const std::string& path, int n) { return GraphReader(path, n).read(); }

}  // namespace starling
