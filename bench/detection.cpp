// The time from a worker's end until the others know it, over TCP within this host. Each trial
// starts a process of its own, which connects and never comes to the round. This worker waits for
// its block, and then for it in an average. After 20 to 60 ms the process is killed, or stopped.
// Prints JSON: medians and 99th percentiles, in seconds.
//
//   bench-detection [--trials N] [--silent SECONDS]
//
// The defaults are 200 trials of each kind, and 1 s.
//
//   killed.socket    until a bare socket beside the edge reports the end: nobody can know it before
//   killed.round     until the round goes on without it
//   killed.ended     until the average goes on without it: its process has ended, not only its link
//   stopped.round    until the round goes on without a process that is stopped; the timeout is
//                    `silent`, in parts of which heartbeats come
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "starling/core/descriptor.h"
#include "starling/core/text.h"
#include "starling/exchange/exchange.h"
#include "starling/topology/schedules.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/tcp/tcp.h"
#include "starling/world/folder_store.h"

namespace {

using bench::now;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr const char* kHere = "127.0.0.1";

// This worker's end of the exchange of two.
std::unique_ptr<starling::Exchange> met(int rank, const std::string& folder, const std::string& channel,
                                        milliseconds silent) {
  starling::World world;
  world.rank = rank;
  world.size = 2;
  world.token = "only for this measurement";
  world.address = kHere;
  world.store = std::make_shared<starling::FolderStore>(folder);
  world.timeouts.silent = silent;
  auto exchange = std::make_unique<starling::Exchange>(
      starling::make_tcp_transport(world, channel), starling::make_schedule("ring", 2),
      std::vector<std::size_t>{1}, starling::ExchangeOptions{.patience = {.silent = silent}});
  exchange->meet();
  return exchange;
}

// The process that is killed.
int be_victim(const std::string& folder, const std::string& channel, milliseconds silent, int port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const starling::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const starling::SocketAddress address = starling::resolve(kHere, port);
  if (connect(socket.get(), address.get(), address.length) != 0)
    throw std::runtime_error("cannot connect with the program that measures");
  const auto exchange = met(1, folder, channel, silent);
  for (;;) pause();
}

class Victim {
 public:
  Victim(const std::string& folder, const std::string& channel, milliseconds silent, int port) {
    std::vector<std::string> words{
        "bench-detection", "victim", folder, channel, std::to_string(silent.count()), std::to_string(port)};
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&process_, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ) != 0)
      throw std::runtime_error("cannot start a process");
  }
  ~Victim() {
    send(SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  void send(int signal) const { kill(process_, signal); }

 private:
  pid_t process_ = 0;
};

struct Times {
  double socket, round, ended;  // since the signal
};

class Trials {
 public:
  explicit Trials(milliseconds silent)
      : silent_(silent), listener_(starling::listen_at(starling::resolve(kHere, 0))) {}

  Times run(int signal) {
    const std::string channel = std::to_string(++trial_);
    const Victim victim(folder_.path(), channel, silent_, starling::bound_address(listener_).port());
    const starling::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto exchange = met(0, folder_.path(), channel, silent_);
    Times at{};
    std::thread watch([&] {
      char byte = 0;
      while (recv(socket.get(), &byte, 1, 0) > 0) {
      }
      at.socket = now();
    });
    double begin = 0;
    std::thread killer([&] {
      std::this_thread::sleep_for(milliseconds(std::uniform_int_distribution(20, 60)(random_)));
      begin = now();
      victim.send(signal);
    });
    if (const auto mine = exchange->outgoing(0); mine.values != nullptr)
      std::memset(mine.values, 0, sizeof(float));
    exchange->start(0, /*finite=*/true);
    exchange->finish(0);
    at.round = now();
    float value = 0;
    exchange->average({&value, 1});
    at.ended = now();
    killer.join();
    victim.send(SIGKILL);
    watch.join();
    return {at.socket - begin, at.round - begin, at.ended - begin};
  }

 private:
  const milliseconds silent_;
  const starling::PrivateFolder folder_;
  const starling::Descriptor listener_;
  int trial_ = 0;
  std::mt19937_64 random_{1};
};

Json quantiles(const std::vector<Times>& all, double Times::* of) {
  std::vector<double> times;
  for (const Times& each : all) times.push_back(each.*of);
  std::ranges::sort(times);
  const auto last = static_cast<double>(times.size() - 1);
  const auto at = [&](double part) { return times[static_cast<std::size_t>(std::ceil(part * last))]; };
  return {{"median_s", at(0.5)}, {"p99_s", at(0.99)}, {"most_s", times.back()}};
}

int run(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "victim")
    return be_victim(argv[2], argv[3], milliseconds(std::atoi(argv[4])), std::atoi(argv[5]));
  int trials = 200;
  double silent = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const auto value = starling::parse_number<double>(i + 1 < argc ? argv[i + 1] : "");
    if (name == "--trials" && value && *value >= 1 && *value <= 1e6) {
      trials = static_cast<int>(*value);
    } else if (name == "--silent" && value && *value >= 0.1 && *value <= 100) {
      silent = *value;
    } else {
      throw std::invalid_argument(fmt::format(
          "options are --trials N, from 1, and --silent SECONDS, from 0.1 to 100; not '{}'", name));
    }
  }
  Trials runs(milliseconds(std::lround(1000 * silent)));
  std::vector<Times> killed, stopped;
  for (int k = 0; k < trials; ++k) {
    killed.push_back(runs.run(SIGKILL));
    stopped.push_back(runs.run(SIGSTOP));
  }
  const Json result{{"trials", trials},
                    {"silent_s", silent},
                    {"killed",
                     {{"socket", quantiles(killed, &Times::socket)},
                      {"round", quantiles(killed, &Times::round)},
                      {"ended", quantiles(killed, &Times::ended)}}},
                    {"stopped", {{"round", quantiles(stopped, &Times::round)}}}};
  fmt::print("{}\n", result.dump(2));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-detection", [&] { return run(argc, argv); });
}
