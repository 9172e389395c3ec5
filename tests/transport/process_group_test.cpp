// The world of an existing process group: among real processes with a Gloo group, and among threads
// on hosts of their own.
#include "starling/transport/c10d/process_group.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "processes.h"
#include "starling/core/descriptor.h"
#include "starling/optim/optimizer.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/settings.h"
#include "starling/transport/c10d/store.h"
#include "starling/transport/c10d/tcp_store.h"
#include "starling/world/store.h"
#include "starling/world/token.h"
#include "starling/world/world.h"
#include "tests/folder.h"
#include "tests/log_lines.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

std::map<std::string, std::string> transport(const std::string& name) {
  return {{"STARLING_TRANSPORT", name}};
}

// Like init_process_group("gloo").
c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(int rank, int size, int port) {
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>("default_pg/", join_store("127.0.0.1", port, 60s));
  auto options = c10d::ProcessGroupGloo::Options::create(60s);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::GLOO);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options));
  return group;
}

// The parameters after 50 steps, each worker with gradients of its own.
at::Tensor train(const World& world) {
  const at::Tensor x = at::arange(100'000, at::kFloat).mul_(1e-3).set_requires_grad(true);
  Optimizer optimizer(std::vector<at::Tensor>{x}, AccumAdamW{.lr = 1e-3, .window = 4}, {.topology = "base-2"},
                      world);
  const at::Tensor centre = at::arange(100'000, at::kFloat).mul_(1e-3 * world.rank).sin_();
  for (int t = 0; t < 50; ++t) {
    x.mutable_grad() = x.detach() - centre;
    optimizer.step();
  }
  return x.detach().clone();
}

TEST(FromProcessGroup, TrainsAsFromTheEnvironmentWhileTheGroupIsUsed) {
  constexpr int kWorkers = 3;
  const Processes three(kWorkers, true, [](int rank, int port) -> std::string {
    at::Tensor by_environment;
    {
      const Environment environment(torchruns(rank, kWorkers, port, true));
      by_environment = train(World::from_environment());
    }
    const Environment none({});
    const auto group = gloo_group(rank, kWorkers, port);
    World world = World::from_process_group(*group);
    if (world.rank != rank || world.size != kWorkers) return "wrong rank or size";
    if (world.local_rank != rank || world.local_size != kWorkers) return "wrong local rank or size";
    if (world.address != "127.0.0.1" || world.token.size() != 64) return "wrong address or token";

    std::vector<at::Tensor> sum{at::ones({1 << 20})};
    const auto under_way = group->allreduce(sum);
    const at::Tensor by_group = train(world);
    under_way->wait();
    if (!at::equal(by_group, by_environment)) return "other parameters";
    if (at::equal(by_group, at::arange(100'000, at::kFloat).mul_(1e-3))) return "untrained";
    // A second world of the same group is another one.
    return at::equal(train(World::from_process_group(*group)), by_environment)
               ? "equal"
               : "other parameters the second time";
  });
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(three.answer(rank), "equal");
}

TEST(FromProcessGroup, TrainsOverTheGroupItself) {
  constexpr int kWorkers = 3;
  const Processes three(kWorkers, true, [](int rank, int port) -> std::string {
    const Environment none({});
    const auto group = gloo_group(rank, kWorkers, port);
    const at::Tensor over_own_edges = train(World::from_process_group(*group));
    const Environment over_the_group(transport("c10d"));
    World world = World::from_process_group(*group);
    LogLines lines;
    world.log = lines.log(Level::debug);
    if (!at::equal(train(world), over_own_edges)) return "other parameters";
    const std::string said = lines.text();
    if (said.find("go by the process group (gloo)") == std::string::npos) return "not by the group: " + said;
    return said.find("fails") == std::string::npos ? "equal" : said;
  });
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(three.answer(rank), "equal");
}

TEST(FromProcessGroup, AWorkerKilledOverTheGroupItselfIsLostAndNamed) {
  constexpr int kWorkers = 3;
  const Processes three(kWorkers, true, [](int rank, int port) -> std::string {
    const Environment over_the_group(transport("c10d"));
    const auto group = gloo_group(rank, kWorkers, port);
    World world = World::from_process_group(*group);
    LogLines said;
    world.log = said.log();
    const at::Tensor x = at::ones({3'000'000}).set_requires_grad(true);
    Optimizer optimizer(std::vector<at::Tensor>{x}, SGD{.lr = 0.1}, {.topology = "complete"}, world);
    for (int t = 0; t < 30; ++t) {
      if (rank == 1 && t == 10) raise(SIGKILL);
      x.mutable_grad() = x.detach() - rank;
      optimizer.step();
    }
    Consensus average(optimizer);
    const double spread = (x.detach().max() - x.detach().min()).item<double>();
    if (average.workers() != 2 || !(spread < 1e-5)) return "averaged over others: " + said.text();
    return said.text();
  });
  EXPECT_EQ(three.answer(1), "signal 9");
  for (const int rank : {0, 2})
    EXPECT_THAT(three.answer(rank), AllOf(HasSubstr("worker 1"), testing::Not(HasSubstr("averaged"))));
}

TEST(FromProcessGroup, NeedsAStore) {
  c10d::ProcessGroup group(0, 1);
  EXPECT_THAT(refusal([&] { World::from_process_group(group); }), HasSubstr("without a store"));
}

// One worker per entry, each a thread with its own host and variables. World or error of each.
struct Worker {
  std::string host = "here";
  std::map<std::string, std::string> variables = {};
  World world = {};
  std::string failure = {};
};
void meet(std::vector<Worker>& workers, const c10::intrusive_ptr<c10d::Store>& store, int missing = 0,
          std::chrono::milliseconds patience = 60s) {
  const int size = static_cast<int>(workers.size()) + missing;
  on_threads(static_cast<int>(workers.size()), [&](int rank) {
    Worker& worker = workers[static_cast<std::size_t>(rank)];
    const auto variable = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = worker.variables.find(name);
      return found == worker.variables.end() ? std::nullopt : std::optional(found->second);
    };
    worker.failure = refusal(
        [&] { worker.world = meet_at(store, rank, size, {.meet = patience}, variable, worker.host); });
  });
}

TEST(FromProcessGroup, OnOneHostUsesLoopbackAndASecretOfItsOwn) {
  std::vector<Worker> workers(3);
  meet(workers, c10::make_intrusive<c10d::HashStore>());
  for (int rank = 0; rank < 3; ++rank) {
    const Worker& worker = workers[static_cast<std::size_t>(rank)];
    ASSERT_EQ(worker.failure, "accepted");
    EXPECT_EQ(worker.world.address, "127.0.0.1");
    EXPECT_EQ(worker.world.local_rank, rank);
    EXPECT_EQ(worker.world.local_size, 3);
    EXPECT_EQ(worker.world.token.size(), 64u);
    EXPECT_EQ(worker.world.token, workers[0].world.token);
    EXPECT_THROW(worker.world.store->get("token", 20ms), Error);
  }
  // Another user can enter neither the folder nor the file, and both go with rank 0.
  const std::filesystem::path file = workers[1].world.store->get("token-file", 5s);
  using std::filesystem::perms;
  for (const auto& path : {file, file.parent_path()})
    EXPECT_EQ(std::filesystem::status(path).permissions() & (perms::group_all | perms::others_all),
              perms::none);
  workers.clear();
  EXPECT_FALSE(std::filesystem::exists(file.parent_path()));
}

// Whoever can write to the store may name another file, whose content he knows.
TEST(FromProcessGroup, ATokenFileThatRankZeroHasNotMadeIsRefused) {
  const Folder folder;
  const auto written = [&](const std::string& text, mode_t of_folder) {
    const std::string file = folder / "token";
    std::ofstream(file) << text;
    chmod(file.c_str(), 0600);
    chmod(folder.path.c_str(), of_folder);
    return file;
  };
  const std::string made = random_token();
  const auto refused = [](const std::string& file) {
    MemoryStore store;
    store.set("token-file", file);
    return refusal([&] { token_on_this_host(store, 1, 5s, nobody); });
  };
  EXPECT_EQ(refused(written(made, 0700)), "accepted");
  const std::string no_token = " is not one: somebody else may have written to the store";
  EXPECT_THAT(refused(written(made, 0711)), HasSubstr(no_token));
  EXPECT_THAT(refused(written("00000000", 0700)), HasSubstr(no_token));
  EXPECT_THAT(refused(written(std::string(64, 'x'), 0700)), HasSubstr(no_token));
  EXPECT_THAT(refused("/proc/self/personality"), HasSubstr(no_token));
  EXPECT_THAT(refused(folder / "none/token"),
              HasSubstr(" is gone: rank 0 has ended, or somebody else may have"));
}

TEST(FromProcessGroup, WorldsOfOneGroupShareNothing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Worker> first(2), second(2);
  meet(first, store);
  meet(second, store);
  EXPECT_NE(first[0].world.token, second[0].world.token);
  EXPECT_EQ(second[0].world.token, second[1].world.token);
  first[0].world.store->set("key", "stale");
  EXPECT_EQ(first[1].world.store->get("key", 5s), "stale");
  EXPECT_THROW(second[1].world.store->get("key", 20ms), Error);
}

TEST(FromProcessGroup, FindsWhoSharesAHost) {
  std::string between_hosts;
  for (const Interface& one : interfaces()) {
    if (!one.address.is_loopback() && one.address.storage.ss_family == AF_INET) between_hosts = one.name;
  }
  if (between_hosts.empty()) GTEST_SKIP() << "this host has a loopback interface only";
  std::vector<Worker> workers;
  for (const char* host : {"a", "b", "a", "b", "a"})
    workers.push_back({host, {{"STARLING_SOCKET_IFNAME", between_hosts}}});
  meet(workers, c10::make_intrusive<c10d::HashStore>());
  std::vector<int> ranks, sizes;
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.failure, "accepted");
    EXPECT_FALSE(resolve(worker.world.address, 0).is_loopback());
    ranks.push_back(worker.world.local_rank);
    sizes.push_back(worker.world.local_size);
  }
  EXPECT_THAT(ranks, testing::ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(sizes, testing::ElementsAre(3, 2, 3, 2, 3));
}

TEST(FromProcessGroup, RefusesLoopbackBetweenHosts) {
  std::vector<Worker> workers{{"a", {{"STARLING_SOCKET_IFNAME", "lo"}}},
                              {"b", {{"STARLING_SOCKET_IFNAME", "lo"}}}};
  meet(workers, c10::make_intrusive<c10d::HashStore>());
  for (const Worker& worker : workers) {
    EXPECT_THAT(worker.failure,
                AllOf(HasSubstr("the loopback address 127.0.0.1"), HasSubstr("STARLING_SOCKET_IFNAME")));
  }
}

// Then the token would be in a store that every user of this host can read.
TEST(FromProcessGroup, AWorkerOfAnotherHostCannotMeetAtLoopback) {
  const HostedStore loopback = host_store("127.0.0.1", 0, 60s);
  std::vector<Worker> workers{{"here"}, {"elsewhere"}};
  meet(workers, loopback.store);
  for (const int rank : {0, 1})
    EXPECT_EQ(workers[static_cast<std::size_t>(rank)].failure,
              "process group: worker " + std::to_string(1 - rank) +
                  " says that it is on another host, but all meet at 127.0.0.1, which no other host reaches");
  EXPECT_FALSE(loopback.store->check({"starling/0/token"}));
}

TEST(FromProcessGroup, TheUsersTokenIsTakenAndStaysOutOfTheStore) {
  const std::map<std::string, std::string> token{{"STARLING_TOKEN", "a secret of 20 bytes"}};
  std::vector<Worker> workers{{"here", token}, {"here", token}};
  meet(workers, c10::make_intrusive<c10d::HashStore>());
  for (const Worker& worker : workers) {
    EXPECT_EQ(worker.world.token, "a secret of 20 bytes");
    EXPECT_THROW(worker.world.store->get("token", 20ms), Error);
  }
}

TEST(FromProcessGroup, ATokenThatOnlySomeHaveIsRefusedByAll) {
  for (const int with_token : {0, 2}) {
    std::vector<Worker> workers(3);
    workers[static_cast<std::size_t>(with_token)].variables["STARLING_TOKEN"] = "a secret of 20 bytes";
    meet(workers, c10::make_intrusive<c10d::HashStore>());
    const std::string without = with_token == 0 ? "worker 1 has none" : "worker 0 has none";
    for (const Worker& worker : workers) {
      EXPECT_THAT(worker.failure, AllOf(HasSubstr("worker " + std::to_string(with_token) + " has a token"),
                                        HasSubstr(without)));
    }
  }
}

// Sending by the group requires a neighbour that asks the group.
TEST(FromProcessGroup, AnotherTransportThanTheOthersIsRefusedByAll) {
  constexpr int kWorkers = 2;
  const Processes two(kWorkers, true, [](int rank, int port) -> std::string {
    const Environment different(transport(rank == 0 ? "tcp" : "c10d"));
    World::from_process_group(*gloo_group(rank, kWorkers, port));
    return "accepted";
  });
  for (int rank = 0; rank < kWorkers; ++rank)
    EXPECT_THAT(two.answer(rank), HasSubstr("STARLING_TRANSPORT is tcp on worker 0 and c10d on worker 1"));
}

TEST(FromProcessGroup, TheGroupCarriesOnlyWhatItsBackendsCan) {
  std::vector<Worker> without_a_backend{{"here", {{"STARLING_TRANSPORT", "c10d"}}}};
  meet(without_a_backend, c10::make_intrusive<c10d::HashStore>());
  EXPECT_THAT(without_a_backend[0].failure,
              AllOf(HasSubstr("'c10d' is not allowed"), HasSubstr("from_process_group")));
  const Environment over_the_group(transport("c10d"));
  c10d::ProcessGroup group(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  EXPECT_THAT(refusal([&] { World::from_process_group(group); }),
              HasSubstr("backend for tensors on the CPU"));
}

TEST(FromProcessGroup, SaysWhoHasNotCome) {
  std::vector<Worker> workers(2);
  meet(workers, c10::make_intrusive<c10d::HashStore>(), 1, 3s);
  for (const Worker& worker : workers) {
    EXPECT_THAT(worker.failure, AllOf(HasSubstr("worker 2 has not come"), HasSubstr("'worker-2'")));
  }
}

// A worker that is stopped inside an operation holds the lock of the group's file.
TEST(FromProcessGroup, AWaitForItsStoreCanBeInterrupted) {
  static const PrivateFolder folder;  // the thread that is left behind may use it after the test
  const std::string path = folder.path() / "store";
  const auto store = file_store(path);
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  const auto no_variable = [](const std::string&) { return std::nullopt; };
  EXPECT_EQ(refusal([&] {
              meet_at(store, 0, 2, {.meet = 60s}, no_variable, "here", nullptr, [] { return true; });
            }),
            "process group: rank 0 cannot use the group's store: interrupted");
}

TEST(FromProcessGroup, AHostIsAlwaysTheSame) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_THAT(host_identity(), AllOf(HasSubstr("/net:["), testing::Not(HasSubstr(" "))));
}

}  // namespace
}  // namespace starling
