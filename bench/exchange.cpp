// One worker of the exchange benchmark: Starling's exchange with mixing beside Gloo's send and
// receive with lerp_, in the same processes, by turns. bench/exchange.py starts the workers (as
// torchrun does, by environment variables) and combines the figures. Rank 0 prints JSON.
//
//   bench-exchange [--kilobytes N,N,..] [--repetitions N] [--volume MEGABYTES] [--idle SECONDS]
//                [--round-trips N] [--unmixed 0|1] [--only NAME]
//
// Each worker swaps N kilobytes of fp32 parameters with its one neighbour in the schedule
// one-peer-ring, in the blocks that an Optimizer would cut. Block by block it finishes the last
// exchange, mixes, and starts the next one. Gloo does the same in the same loop: wait for the
// block's send and receive, lerp_, send and receive again; once in the same blocks and once in a
// single tensor. The lower bound of any exchange is the same mixing of blocks of this worker's own,
// without an exchange ("own"). Then all but that run without mixing (--unmixed 0 leaves that out).
// Each has one I/O thread and one thread of torch. --only names one of them, for a profiler.
//
//   seconds   per exchange of all blocks, the slowest worker's, by repetition
//   cpu       seconds of all workers, user and system, per GB that they sent
//   latency   seconds of a round trip of 64 KB: it reaches the other's training thread, which sends
//             as much back
//   under_load  seconds of a control frame from one I/O thread to the other's (half of a round
//             trip), while blocks fill the link in both directions; sorted
//   idle      CPU time of a worker per second of waiting for a neighbour that does not come
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <sys/resource.h>
#include <torch/optim/optimizer.h>

#include "bench/gloo.h"
#include "bench/measure.h"
#include "bench/messages.h"
#include "starling/optim/blocks.h"
#include "starling/optim/pass.h"
#include "starling/topology/schedules.h"
#include "starling/world/world.h"

namespace {

using at::Tensor;
using bench::Gloo;
using bench::kMessage;
using bench::Lap;
using bench::median;
using bench::Messenger;
using bench::now;
using bench::UnderLoad;
using starling::Block;
using starling::Exchange;
using Json = nlohmann::ordered_json;
using std::chrono::seconds;

constexpr std::int64_t kBlockBytes = 25 << 20;  // Options::block_bytes
// Number of exchanges in a row: training has few of their begins and ends, at which nothing
// overlaps.
constexpr std::int64_t kFewest = 8;

// CPU time of this process, user and system.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

struct Parameters {
  explicit Parameters(std::int64_t bytes, double value) : x(at::full({bytes / 4}, value)) {
    const std::vector<torch::optim::OptimizerParamGroup> groups{
        torch::optim::OptimizerParamGroup(std::vector<Tensor>{x})};
    starling::append_blocks(blocks, groups, 0, kBlockBytes);
  }
  Tensor x;
  std::vector<Block> blocks;
};

class Competitor {
 public:
  Competitor(std::int64_t bytes, int rank) : parameters(bytes, rank) {}
  virtual ~Competitor() = default;
  virtual void run(std::int64_t exchanges) = 0;
  Parameters parameters;
  bool mixes = true;
};

// The loop of Optimizer::step() under cta, without the rule.
class Ours final : public Competitor {
 public:
  Ours(const starling::World& world, std::int64_t bytes)
      : Competitor(bytes, world.rank),
        exchange(world.make_transport(world, "bench-" + std::to_string(bytes)),
                 starling::make_schedule("one-peer-ring", world.size), sizes(parameters.blocks),
                 {.log = world.log}) {
    exchange.meet();
  }
  void run(std::int64_t exchanges) override {
    for (Block& block : parameters.blocks) start(block, {});
    for (std::int64_t i = 1; i < exchanges; ++i) {
      for (Block& block : parameters.blocks) start(block, exchange.finish(block.index));
    }
    for (Block& block : parameters.blocks) {
      const auto arrived = exchange.finish(block.index);
      if (mixes) starling::mix(block, arrived, {});
    }
  }
  Exchange exchange;

 private:
  static std::vector<std::size_t> sizes(const std::vector<Block>& blocks) {
    std::vector<std::size_t> all;
    for (const Block& block : blocks) all.push_back(static_cast<std::size_t>(block.length));
    return all;
  }
  void start(Block& block, std::span<const starling::Arrival> arrived) {
    const auto outgoing = exchange.outgoing(block.index);
    exchange.start(block.index, !mixes || starling::mix(block, arrived, outgoing));
  }
};

class Theirs final : public Competitor {
 public:
  Theirs(Gloo& gloo, const starling::World& world, std::int64_t bytes, bool whole)
      : Competitor(bytes, world.rank), gloo_(gloo), rank_(world.rank) {
    const Tensor x = parameters.x.detach();
    std::int64_t begin = 0;
    if (whole) mine_.push_back(x);
    for (const Block& block : parameters.blocks) {
      if (!whole) mine_.push_back(x.narrow(0, begin, block.length));
      begin += block.length;
    }
    for (const Tensor& t : mine_) theirs_.push_back(at::zeros_like(t));
    sent_.resize(mine_.size());
    received_.resize(mine_.size());
    for (const auto& graph : starling::make_schedule("one-peer-ring", world.size).rounds) {
      const auto& neighbour = graph.neighbours[static_cast<std::size_t>(rank_)].at(0);
      neighbours_.push_back({neighbour.rank, neighbour.weight});
    }
  }
  void run(std::int64_t exchanges) override {
    for (std::size_t b = 0; b < mine_.size(); ++b) start(b, 0);
    for (std::int64_t i = 1; i <= exchanges; ++i) {
      for (std::size_t b = 0; b < mine_.size(); ++b) {
        received_[b]->wait();
        sent_[b]->wait();
        if (mixes) mine_[b].lerp_(theirs_[b], neighbour(i - 1).weight);
        if (i < exchanges) start(b, i);
      }
    }
  }

 private:
  struct Neighbour {
    int rank;
    double weight;
  };
  const Neighbour& neighbour(std::int64_t round) const {
    return neighbours_[static_cast<std::size_t>(round) % neighbours_.size()];
  }
  void start(std::size_t b, std::int64_t round) {
    const int peer = neighbour(round).rank, tag = static_cast<int>(b);
    gloo_.receive(theirs_[b], peer, tag, received_[b]);
    gloo_.send(mine_[b], peer, tag, sent_[b]);
  }
  Gloo& gloo_;
  const int rank_;
  std::vector<Neighbour> neighbours_;
  std::vector<Tensor> mine_, theirs_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sent_, received_;
};

// The cost of starling::mix without an exchange: the neighbour's blocks are this worker's own, and
// do not move.
class Alone final : public Competitor {
 public:
  Alone(const starling::World& world, std::int64_t bytes) : Competitor(bytes, world.rank) {
    for (const Block& block : parameters.blocks) {
      auto& mine = blocks_.emplace_back();
      for (auto& buffer : mine) {
        buffer = std::make_shared<starling::Buffer>(sizeof(float) * static_cast<std::size_t>(block.length));
        std::ranges::fill(floats_of(*buffer), static_cast<float>(world.rank));
      }
    }
  }
  void run(std::int64_t exchanges) override {
    const auto sent = [](const std::shared_ptr<starling::Buffer>& buffer) {
      return starling::SentBlock(starling::payload_of(buffer), starling::Wire::fp32);
    };
    for (std::int64_t i = 0; i < exchanges; ++i) {
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        auto& [theirs, last, next] = blocks_[b];
        const starling::Arrival arrived{.weight = 0.5F, .theirs = sent(theirs), .mine = sent(last)};
        starling::mix(parameters.blocks[b], {&arrived, 1}, floats_of(*next).data());
        std::swap(last, next);
      }
    }
  }

 private:
  std::vector<std::array<std::shared_ptr<starling::Buffer>, 3>> blocks_;
};

Json throughput(Gloo& gloo, const starling::World& world, std::int64_t bytes, std::int64_t volume,
                std::int64_t repetitions, bool unmixed, const std::string& only) {
  Ours ours(world, bytes);
  Theirs blocks(gloo, world, bytes, false), whole(gloo, world, bytes, true);
  Alone own(world, bytes);
  struct Form {
    std::string name;
    Competitor* competitor;
    bool mixes;
  };
  std::vector<Form> all;
  for (const bool mixes : {true, false}) {
    const std::string end = mixes ? "" : "_unmixed";
    all.push_back({"starling" + end, &ours, mixes});
    all.push_back({"gloo" + end, &blocks, mixes});
    if (ours.parameters.blocks.size() > 1) all.push_back({"gloo_whole" + end, &whole, mixes});
    if (mixes) all.push_back({"own", &own, mixes});
    if (!unmixed) break;
  }
  if (!only.empty()) std::erase_if(all, [&](const Form& form) { return form.name != only; });
  const std::int64_t exchanges = std::clamp<std::int64_t>(volume / bytes, kFewest, 2000);
  Json times, cpus;
  for (std::int64_t r = 0; r <= repetitions; ++r) {  // the first one warms up
    for (const auto& [name, competitor, mixes] : all) {
      competitor->mixes = mixes;
      gloo.barrier();
      const double cpu = cpu_seconds(), begin = now();
      competitor->run(exchanges);
      const double end = now();
      gloo.barrier();  // the neighbours may still need this process
      const Lap lap = gloo.of_all({end - begin, cpu_seconds() - cpu});
      if (r == 0) continue;
      times[name].push_back(lap.seconds / static_cast<double>(exchanges));
      cpus[name].push_back(lap.cpu / (1e-9 * static_cast<double>(bytes * exchanges * world.size)));
    }
  }
  const auto statistics = ours.exchange.statistics();
  if (statistics.aborted != 0)
    throw std::runtime_error("rank " + std::to_string(world.rank) + ": " +
                             std::to_string(statistics.aborted) + " exchanges were aborted");
  for (const auto& [name, competitor, mixes] : all) {
    if (!mixes || competitor == &own) continue;
    // Each worker began with its rank: two reach their mean, larger rings come nearer to it.
    const double mean = (world.size - 1) / 2.0;
    const double distance = (competitor->parameters.x - mean).abs().max().item<double>();
    if (!(distance < (world.size == 2 ? 1e-6 : mean - 0.25)))
      throw std::runtime_error(name + ": the workers did not mix: " + std::to_string(distance) +
                               " from the mean");
  }
  return {{"bytes", bytes},
          {"blocks", ours.parameters.blocks.size()},
          {"in_place",
           static_cast<double>(statistics.bytes_in_place) / static_cast<double>(statistics.bytes_sent)},
          {"exchanges", exchanges},
          {"seconds", times},
          {"cpu", cpus}};
}

// The latency between ranks 0 and 1, the median of each repetition.
Json latency(Gloo& gloo, const starling::World& world, std::int64_t round_trips, std::int64_t repetitions) {
  Json times;
  std::unique_ptr<Messenger> messenger;
  const bool first = world.rank == 0, plays = world.rank < 2;
  if (plays) messenger = std::make_unique<Messenger>(world);
  const Tensor there = at::zeros({static_cast<std::int64_t>(kMessage) / 4}), back = at::zeros_like(there);
  const auto gloo_sends = [&] {
    c10::intrusive_ptr<c10d::Work> work;
    gloo.send(there, 1 - world.rank, 0, work);
    work->wait();
  };
  const auto gloo_receives = [&] {
    c10::intrusive_ptr<c10d::Work> work;
    gloo.receive(back, 1 - world.rank, 0, work);
    work->wait();
  };
  const auto play = [&](const auto& send, const auto& receive) {
    std::vector<double> each;
    for (std::int64_t i = 0; i < round_trips; ++i) {
      const double begin = now();
      if (first) send();
      receive();
      if (!first) send();
      each.push_back(now() - begin);
    }
    return median(each);
  };
  for (std::int64_t r = 0; r <= repetitions; ++r) {
    gloo.barrier();
    const double ours = plays ? play([&] { messenger->send(); }, [&] { messenger->receive(); }) : 0;
    gloo.barrier();
    const double theirs = plays ? play(gloo_sends, gloo_receives) : 0;
    if (r == 0) continue;
    times["starling"].push_back(ours);
    times["gloo"].push_back(theirs);
  }
  gloo.barrier();
  return times;
}

// The control frames' latency between ranks 0 and 1, half of each round trip, sorted.
Json under_load(Gloo& gloo, const starling::World& world, std::int64_t round_trips) {
  std::vector<double> one_way;
  {
    std::unique_ptr<UnderLoad> pair;
    if (world.rank < 2) pair = std::make_unique<UnderLoad>(world);
    if (world.rank == 0) {
      for (std::int64_t i = 0; i < round_trips; ++i) one_way.push_back(pair->round_trip() / 2);
    }
    gloo.barrier();
  }
  std::sort(one_way.begin(), one_way.end());
  return one_way;
}

// Rank 0 waits for a block of rank 1, which comes late.
Json idle(Gloo& gloo, const starling::World& world, std::int64_t duration) {
  Ours ours(world, 1 << 20);
  gloo.barrier();
  if (world.rank != 0) std::this_thread::sleep_for(seconds(duration));
  const double cpu = cpu_seconds(), begin = now();
  ours.run(1);
  const double share = (cpu_seconds() - cpu) / (now() - begin);
  gloo.barrier();
  return share;
}

struct Asked {
  std::vector<std::int64_t> kilobytes{64, 256, 1024, 4096, 16384, 65536};
  std::int64_t repetitions = 5, volume = 128, idle = 0, round_trips = 0, unmixed = 1;
  std::string only{};
};

Asked asked(int argc, char** argv) {
  Asked all;
  const std::map<std::string, std::pair<std::int64_t*, std::int64_t>> known{
      {"--repetitions", {&all.repetitions, 1}},
      {"--volume", {&all.volume, 1}},
      {"--idle", {&all.idle, 0}},
      {"--unmixed", {&all.unmixed, 0}},
      {"--round-trips", {&all.round_trips, 0}}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    bool good = false;
    if (name == "--kilobytes") {
      all.kilobytes.clear();
      std::stringstream list(value);
      for (std::string one; std::getline(list, one, ',');) all.kilobytes.push_back(std::atoll(one.c_str()));
      good = std::all_of(all.kilobytes.begin(), all.kilobytes.end(), [](auto size) { return size > 0; });
    } else if (name == "--only") {
      all.only = value;
      good = true;
    } else if (const auto option = known.find(name); option != known.end()) {
      *option->second.first = std::atoll(value.c_str());
      good = !value.empty() && *option->second.first >= option->second.second;
    }
    if (!good)
      throw std::invalid_argument(
          "'" + name + " " + value +
          "' is not allowed: --kilobytes N,N,.., --repetitions N, --volume MEGABYTES, "
          "--idle SECONDS, --round-trips N, --unmixed 0|1, --only NAME");
  }
  return all;
}

int run(const Asked& asked) {
  const c10::AutoGradMode no_gradient(false);
  at::set_num_threads(1);
  starling::World world = starling::World::from_environment();
  world.log = starling::log_to_stderr(world.rank);
  if (world.size < 2 || world.size % 2 != 0)
    throw std::invalid_argument("there must be an even number of workers, and there is " +
                                std::to_string(world.size) + ": bench/exchange.py starts them");
  Gloo gloo(world);
  Json result{{"workers", world.size}, {"sizes", Json::array()}};
  for (const std::int64_t kilobytes : asked.kilobytes)
    result["sizes"].push_back(throughput(gloo, world, kilobytes << 10, asked.volume << 20, asked.repetitions,
                                         asked.unmixed != 0, asked.only));
  if (asked.round_trips > 0) {
    result["latency"] = latency(gloo, world, asked.round_trips, asked.repetitions);
    result["under_load"] = under_load(gloo, world, asked.round_trips);
  }
  if (asked.idle > 0) result["idle"] = idle(gloo, world, asked.idle);
  if (world.rank == 0) std::puts(result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-exchange", [&] { return run(asked(argc, argv)); });
}
