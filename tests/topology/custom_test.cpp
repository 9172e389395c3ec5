// Schedules from files: both formats, and every mistake that a file can make.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "starling/topology/spectrum.h"
#include "tests/changed_texts.h"
#include "tests/folder.h"
#include "tests/refusal.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

using testing::StartsWith;
using Row = std::vector<Neighbour>;

class Custom : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    spill(folder_ / name, text);
    return folder_ / name;
  }
  Schedule read(const std::string& text, int n, const std::string& name = "a.toml") const {
    return make_schedule(write(name, text), n);
  }
  // The message without the folder.
  std::string error_of(const std::string& text, int n = 4, const std::string& name = "a.toml") const {
    const std::string what = refusal<UsageError>([&] { read(text, n, name); }), prefix = folder_ / "";
    return what.starts_with(prefix) ? what.substr(prefix.size()) : what;
  }

  const Folder folder_;
};

TEST_F(Custom, EdgesAndRowsFractionsAndDirections) {
  const Schedule schedule = read(R"(workers = 3
[[rounds]]
edges = [[2, 0, 0.5]]
[[rounds]]
directed = true
edges = [[0, 1, "1/3"], [1, 2, "1/3"], [2, 0, "1/3"]]
[[rounds]]
rows = [
  [0.5, 0.25, "1/4"],
  [0.25, "3/4", 0],
  [0.25, 0, 0.75],
]
[[rounds]]
edges = []
)",
                                 3);
  ASSERT_EQ(schedule.rounds.size(), 4u);
  EXPECT_EQ(edges(schedule.rounds[0]), "(0,2)");
  EXPECT_EQ(schedule.rounds[1].neighbours[0], (Row{{1, 1.0 / 3}}));
  EXPECT_EQ(schedule.rounds[1].neighbours[2], (Row{{0, 1.0 / 3}}));
  EXPECT_EQ(edges(schedule.rounds[2], 4), "(0,1:1/4)(0,2:1/4)");
  EXPECT_DOUBLE_EQ(schedule.rounds[2].self_weight(1), 0.75);
  EXPECT_EQ(edges(schedule.rounds[3]), "");
}

TEST_F(Custom, MetropolisHastingsOfAnyUndirectedGraph) {
  const Schedule schedule = read(R"(workers = 4
symmetric = true
[[rounds]]
weights = "metropolis-hastings"
edges = [[0, 1], [2, 0], [1, 2], [0, 3]]
)",
                                 4);
  EXPECT_EQ(edges(schedule.rounds[0], 12), "(0,1:3/12)(0,2:3/12)(0,3:3/12)(1,2:4/12)");
  const auto of = [&](const std::string& round) { return error_of("workers = 4\n[[rounds]]\n" + round); };
  EXPECT_EQ(of("weights = 'best'\nedges = []"),
            "a.toml:3: round 0: weights must be \"metropolis-hastings\" or \"push-sum\", not \"best\"");
  EXPECT_THAT(of("weights = 'pushsum'\nedges = []"),
              testing::HasSubstr("not \"pushsum\", did you mean push-sum?"));
  const std::string ours = "weights = 'metropolis-hastings'\n";
  EXPECT_EQ(of(ours + "rows = []"),
            "a.toml:3: round 0: weights is allowed with edges only: rows contain their weights");
  EXPECT_EQ(of(ours + "directed = true\nedges = []"),
            "a.toml:3: round 0: metropolis-hastings weights need undirected edges");
  EXPECT_EQ(of(ours + "edges = [[0, 1, 0.5]]"),
            "a.toml:4: round 0: with metropolis-hastings weights an edge must be [worker, worker]");
  EXPECT_EQ(of(ours + "edges = [[0, 1], [1, 0]]"),
            "a.toml:4: round 0: edge [1, 0] stands twice (it goes both ways)");
  EXPECT_EQ(of(ours + "edges = [[1, 1]]"), "a.toml:4: round 0: edge [1, 1]: its ends must be two workers");
  EXPECT_EQ(of(ours + "edges = [[0, 4]]"), "a.toml:4: round 0: there is no worker 4: allowed are 0 to 3");
}

TEST_F(Custom, SharesOfAnyDirectedGraphAreForPushSumAlone) {
  const std::string text =
      "workers = 3\n[[rounds]]\nweights = 'push-sum'\nedges = [[0, 1], [2, 1], [1, 0]]\n";
  const Graph graph = make_shares(write("shares.toml", text), 3).rounds.at(0);
  EXPECT_EQ(graph.neighbours[0], (Row{{1, 1.0 / 3}}));
  EXPECT_EQ(graph.neighbours[1], (Row{{0, 1.0 / 2}}));
  EXPECT_EQ(graph.neighbours[2], (Row{{1, 1.0 / 3}}));
  EXPECT_FALSE(graph.balanced());
  EXPECT_THAT(error_of(text, 3),
              testing::HasSubstr("is for push-sum alone: in round 0 some workers give more than they take"));
  EXPECT_EQ(error_of("workers = 3\n[[rounds]]\nweights = 'push-sum'\nedges = [[0, 1], [0, 1]]", 3),
            "a.toml:4: round 0: edge [0, 1] stands twice");
}

TEST_F(Custom, Bandwidth) {
  // 0 and 2, and 1 and 3, have the fast links.
  const Schedule schedule = read(R"({"workers": 4, "bandwidth":
    [[0, 1, 9.5, 1], [1, 0, 1, 9], [9, 1, 0, 1], [1, 9, 1, 0]]})",
                                 4, "a.json");
  ASSERT_EQ(schedule.rounds.size(), 2u);
  EXPECT_EQ(edges(schedule.rounds[0]), "(0,2)(1,3)");
  EXPECT_TRUE(averaging(period_product(schedule)));
  const auto of = [&](const std::string& rest) { return error_of("workers = 2\n" + rest, 2); };
  EXPECT_EQ(of("bandwidth = [[0, 1], [1, 0]]\nrounds = []"), "a.toml:2: it needs either rounds or bandwidth");
  EXPECT_EQ(of("bandwidth = 5"), "a.toml:2: bandwidth must be an array of rows, not a whole number");
  EXPECT_EQ(of("bandwidth = [[0, 1]]"), "a.toml:2: bandwidth has 1 rows, must have 2, one for each worker");
  EXPECT_EQ(of("bandwidth = [[0, 1], [1]]"),
            "a.toml:2: row 1 of bandwidth has 1 numbers, must have 2, one for each worker");
  EXPECT_EQ(of("bandwidth = [[0, 1],\n[-1, 0]]"),
            "a.toml:3: row 1 of bandwidth: a bandwidth must be a number from 0 to 1e+15, not -1");
  EXPECT_EQ(of("bandwidth = [[0, inf], [1, 0]]"),
            "a.toml:2: row 0 of bandwidth: a bandwidth must be a number from 0 to 1e+15, not inf");
  EXPECT_EQ(of("bandwidth = [[0, 'fast'], [1, 0]]"),
            "a.toml:2: row 0 of bandwidth: a bandwidth must be a number from 0 to 1e+15, not a text");
  EXPECT_EQ(of("bandwidth = [[0, 1], [0, 0]]"),
            "a.toml:2: worker 1 cannot be reached from worker 0: links with a bandwidth above 0 in both "
            "directions must connect them");
  EXPECT_EQ(error_of("workers = 257\nbandwidth = []", 257),
            "a.toml:2: bandwidth is allowed for at most 256 workers, but there are 257");
}

TEST_F(Custom, JsonIsTheSame) {
  const std::string json = R"({"workers": 4, "symmetric": true, "rounds": [
    {"edges": [[0, 1, 0.5], [2, 3, "1/2"]]},
    {"rows": [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]]}]})";
  const Schedule schedule = read(json, 4, "a.json");
  EXPECT_EQ(schedule.fingerprint(), make_schedule("base-2", 4).fingerprint());
  EXPECT_TRUE(averaging(period_product(schedule)));
  EXPECT_TRUE(schedule.name.ends_with("/a.json"));
}

TEST_F(Custom, WhatIsWrittenFromASchedulesRowsIsThatSchedule) {
  for (const std::string name : {"base-3", "grid", "static-exponential", "star"}) {
    const Schedule schedule = make_schedule(name, 7);
    std::string text = "workers = 7\n";
    for (const Graph& round : schedule.rounds) {
      const Matrix W = mixing_matrix(round);
      text += "[[rounds]]\nrows = [\n";
      for (int i = 0; i < 7; ++i) {
        text += "[";
        for (int j = 0; j < 7; ++j) text += fmt::format("{},", W(i, j));
        text += "],\n";
      }
      text += "]\n";
    }
    EXPECT_EQ(read(text, 7).fingerprint(), schedule.fingerprint()) << name;
  }
}

TEST_F(Custom, OneWorker) {
  EXPECT_TRUE(read("workers = 1\n[[rounds]]\nrows = [[1]]\n", 1).rounds[0].neighbours[0].empty());
}

TEST_F(Custom, KeysAreChecked) {
  EXPECT_EQ(error_of("[[rounds]]\nedges = []\n"), "a.toml:1: the key workers is missing");
  EXPECT_EQ(error_of("workers = 4"), "a.toml:1: the key rounds is missing");
  EXPECT_EQ(error_of("workers = 4\nround = []"),
            "a.toml:2: unknown key \"round\", did you mean rounds?; there are: workers, symmetric, rounds, "
            "bandwidth");
  for (const std::string workers : {"0", "-1", "1025", "4.0", "'four'", "9223372036854775807"}) {
    EXPECT_EQ(error_of("workers = " + workers + "\n[[rounds]]\nedges = []\n"),
              "a.toml:1: workers must be a whole number from 1 to 1024");
  }
  EXPECT_EQ(error_of("\nworkers = 5\nrounds = []"), "a.toml:2: it is for 5 workers, and there are 4");
  EXPECT_EQ(error_of("workers = 4\nsymmetric = 1\nrounds = []"),
            "a.toml:2: symmetric must be true or false, not a whole number");
  EXPECT_EQ(error_of("workers = 4\nrounds = []"), "a.toml:2: 0 rounds, allowed are 1 to 1024");
  std::string many = "workers = 4\nrounds = [";
  for (int r = 0; r < 1025; ++r) many += "{edges=[]},";
  EXPECT_EQ(error_of(many + "]"), "a.toml:2: 1025 rounds, allowed are 1 to 1024");
  EXPECT_EQ(error_of("workers = 4\nrounds = 3"),
            "a.toml:2: rounds must be an array of sections [[rounds]], not a whole number");
  EXPECT_EQ(error_of("workers = 4\n[rounds]\nedges = []"),
            "a.toml:2: rounds must be an array of sections [[rounds]], not a section");
  EXPECT_EQ(error_of("workers = 4\nrounds = [true]"),
            "a.toml:2: round 0: it must be a section, not true or false");
}

std::string rounds(const std::string& second) {
  return "workers = 4\nsymmetric = true\n[[rounds]]\nedges = []\n[[rounds]]\n" + second;
}

TEST_F(Custom, RoundsAreChecked) {
  EXPECT_EQ(error_of(rounds("")), "a.toml:5: round 1: it needs either edges or rows");
  EXPECT_EQ(error_of(rounds("edges = []\nrows = []")), "a.toml:5: round 1: it needs either edges or rows");
  EXPECT_EQ(error_of(rounds("edgs = []")),
            "a.toml:6: round 1: unknown key \"edgs\", did you mean edges?; there are: edges, directed, "
            "weights, rows");
  EXPECT_EQ(error_of(rounds("directed = 'yes'\nedges = []")),
            "a.toml:6: round 1: directed must be true or false, not a text");
  EXPECT_EQ(error_of(rounds("directed = false\nrows = []")),
            "a.toml:5: round 1: directed is allowed with edges only: rows define the direction themselves");
}

TEST_F(Custom, EdgesAreChecked) {
  const auto edge = [&](const std::string& edges) { return error_of(rounds("edges = [\n" + edges + "\n]")); };
  EXPECT_EQ(error_of(rounds("edges = 1979-05-27")),
            "a.toml:6: round 1: edges must be an array of [worker, worker, weight], not a date or time");
  for (const std::string wrong : {"[0, 1]", "[0, 1, 0.5, 1]", "3", "{}"}) {
    EXPECT_EQ(edge(wrong), "a.toml:7: round 1: an edge must be [worker, worker, weight]");
  }
  EXPECT_EQ(edge("[0, 4, 0.5]"), "a.toml:7: round 1: there is no worker 4: allowed are 0 to 3");
  EXPECT_EQ(edge("[-1, 0, 0.5]"), "a.toml:7: round 1: there is no worker -1: allowed are 0 to 3");
  EXPECT_EQ(edge("[4294967296, 0, 0.5]"),
            "a.toml:7: round 1: there is no worker 4294967296: allowed are 0 to 3");
  EXPECT_EQ(edge("[0.0, 1, 0.5]"), "a.toml:7: round 1: a worker must be a whole number, not a number");
  EXPECT_EQ(edge("[2, 2, 0.5]"), "a.toml:7: round 1: edge [2, 2]: its ends must be two workers");
  EXPECT_EQ(edge("[0, 1, 0]"), "a.toml:7: round 1: edge [0, 1]: its weight must be above 0");
  EXPECT_EQ(edge("[0, 1, -0.25]"), "a.toml:7: round 1: weight -0.25 must be between 0 and 1");
  EXPECT_EQ(edge("[0, 1, 1.5]"), "a.toml:7: round 1: weight 1.5 must be between 0 and 1");
  EXPECT_EQ(edge("[0, 1, nan]"), "a.toml:7: round 1: weight nan must be between 0 and 1");
  EXPECT_EQ(edge("[0, 1, inf]"), "a.toml:7: round 1: weight inf must be between 0 and 1");
  EXPECT_EQ(edge("[0, 1, true]"),
            "a.toml:7: round 1: a weight must be a number or a fraction such as \"1/3\", not true or false");
  for (const std::string text : {"", "1/", "/3", "1/0", "1/-3", "1.5/3", "1/3 ", "1/99999999999", "half"}) {
    EXPECT_EQ(
        edge("[0, 1, '" + text + "']"),
        "a.toml:7: round 1: a weight must be a number or a fraction such as \"1/3\", not \"" + text + "\"");
  }
  EXPECT_EQ(edge("[0, 1, '4/3']"),
            fmt::format("a.toml:7: round 1: weight {} must be between 0 and 1", 4.0 / 3));
  EXPECT_EQ(edge("[0, 1, 0.25],\n[1, 0, 0.25]"),
            "a.toml:8: round 1: edge [1, 0] stands twice (it goes both ways unless directed = true)");
  EXPECT_EQ(edge("[0, 1, 0.25],\n[0, 1, 0.25]"),
            "a.toml:8: round 1: edge [0, 1] stands twice (it goes both ways unless directed = true)");
  EXPECT_EQ(error_of(rounds("directed = true\nedges = [[0, 1, 0.2],\n[0, 1, 0.2]]")),
            "a.toml:8: round 1: edge [0, 1] stands twice");
  EXPECT_EQ(edge("[0, 1, 0.75], [0, 2, 0.75]"),
            "a.toml:5: round 1: row 0: the weights of its neighbours sum to 1.5, must be at most 1");
  EXPECT_EQ(
      error_of("workers = 4\n[[rounds]]\ndirected = true\nedges = [[0, 1, 0.5]]"),
      "a.toml:2: round 0: column 0 sums to 0.5, must be 1: all together must take worker 0's value once");
}

TEST_F(Custom, RowsAreChecked) {
  const auto row = [&](const std::string& third) {
    return error_of(rounds("rows = [\n[1, 0, 0, 0],\n[0, 1, 0, 0],\n" + third + ",\n[0, 0, 0, 1]]"));
  };
  EXPECT_EQ(row("[0, 0, 1.0, 0]"), "accepted");
  EXPECT_EQ(row("[0, 0, 0.9, 0]"),
            "a.toml:9: round 1: row 2 sums to 0.9, must be 1 (a fraction may be written \"1/3\")");
  EXPECT_EQ(row("[0, 0, 1]"), "a.toml:9: round 1: row 2 has 3 weights, must be 4, one for each worker");
  EXPECT_EQ(row("'x'"), "a.toml:9: round 1: row 2 must be an array of weights, not a text");
  EXPECT_EQ(row("[0.5, 0, -0.5, 1]"), "a.toml:9: round 1: weight -0.5 must be between 0 and 1");
  EXPECT_EQ(
      row("[0.5, 0, 0.5, 0]"),
      "a.toml:5: round 1: column 0 sums to 1.5, must be 1: all together must take worker 0's value once");
  EXPECT_EQ(error_of(rounds("rows = [[1, 0, 0, 0]]")),
            "a.toml:6: round 1: 1 rows, must be 4, one for each worker");
  EXPECT_EQ(error_of(rounds("rows = true")),
            "a.toml:6: round 1: rows must be an array of rows, not true or false");
}

TEST_F(Custom, APromiseOfSymmetryIsChecked) {
  const std::string turn = "rows = [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]]";
  EXPECT_EQ(
      error_of(rounds(turn)),
      "a.toml:5: round 1: row 0: not symmetric, as the file promises: it gives worker 1 0.5, and row 1 gives "
      "worker 0 0");
  EXPECT_EQ(error_of("workers = 4\n[[rounds]]\n" + turn), "accepted");
  EXPECT_EQ(error_of("workers = 4\nsymmetric = false\n[[rounds]]\n" + turn), "accepted");
}

TEST_F(Custom, JsonErrorsNameTheLineToo) {
  const auto json = [&](const std::string& text) { return error_of(text, 4, "a.json"); };
  EXPECT_EQ(json("{\"workers\": 4, \"rounds\": [{\"edges\":\n[[0,\n1,\n0.5],\n[1, 7,\n0.5]]}]}"),
            "a.json:5: round 0: there is no worker 7: allowed are 0 to 3");
  EXPECT_EQ(json("{\"workers\":\n5\n, \"rounds\": []}"), "a.json:2: it is for 5 workers, and there are 4");
  EXPECT_EQ(json("{\"workers\": 4, \"rounds\": [{\"edges\": null}]}"),
            "a.json:1: round 0: edges must be an array of [worker, worker, weight], not null");
}

TEST_F(Custom, FilesThatAreNoTopology) {
  const auto error = [](const std::string& path) {
    return refusal<UsageError>([&] { make_schedule(path, 4); });
  };
  EXPECT_EQ(error("/no/such/file.toml"), "/no/such/file.toml: cannot be opened: No such file or directory");
  const std::string link = folder_ / "endless.json";
  std::filesystem::create_symlink("/dev/zero", link);
  EXPECT_EQ(error(link), link + ": larger than 1048576 bytes, so it is no topology");
  EXPECT_THAT(error_of("workers = "), StartsWith("a.toml:1: not TOML: "));
  EXPECT_THAT(error_of("", 4, "a.json"), StartsWith("a.json:1: not JSON: "));
}

TEST_F(Custom, ChangedFilesAreAcceptedOrRefusedInOneLine) {
  const std::string toml =
      "workers = 4\nsymmetric = true\n[[rounds]]\nedges = [[0, 1, 0.5], [2, 3, '1/2']]\n[[rounds]]\n"
      "rows = [[0.5,0,0.5,0], [0,0.5,0,0.5], [0.5,0,0.5,0], [0,0.5,0,0.5]]\n";
  const std::string json =
      "{\"workers\": 4, \"rounds\": [{\"edges\": [[0, 1, 0.5], [2, 3, \"1/2\"]], \"directed\": false}]}";
  expect_one_line_for_changed(toml, 250, [&](const auto& text) { return error_of(text, 4, "a.toml"); });
  expect_one_line_for_changed(json, 250, [&](const auto& text) { return error_of(text, 4, "a.json"); });
}

}  // namespace
}  // namespace starling
