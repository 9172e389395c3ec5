// The collectives and the makers of worlds: among threads and among real processes, some
// of which die.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "recorder.h"
#include "starling/core/clock.h"
#include "starling/transport/c10d/collectives.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/transport/c10d/settings.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/store_values.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"
#include "tests/folder.h"
#include "tests/loopback.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Every operation once, on values that differ by rank. Returns "ok" or the mistake.
std::string use_all(const World& world) {
  const auto all = make_collectives(world, "test");
  const int n = world.size;

  // Several in flight.
  std::vector<at::Tensor> buckets;
  for (int i = 0; i < 5; ++i) buckets.push_back(at::full({1000 + i}, world.rank + 10.0 * i));
  std::vector<Collectives::Pending> pending;
  for (const at::Tensor& bucket : buckets) pending.push_back(all->all_reduce_sum(bucket));
  for (auto& one : pending) one.wait();
  for (int i = 0; i < 5; ++i) {
    const double expected = n * (n - 1) / 2 + 10.0 * i * n;
    if (!buckets[i].eq(expected).all().item<bool>()) return "a sum is wrong";
  }

  for (int root = 0; root < n; ++root) {
    const at::Tensor copied = at::full({3, 5}, world.rank), sum = copied.clone();
    auto copies = all->broadcast(copied, root), sums = all->reduce_sum(sum, root);
    copies.wait();
    sums.wait();
    if (!copied.eq(root).all().item<bool>()) return "a copy is wrong";
    if (world.rank == root && !sum.eq(n * (n - 1) / 2).all().item<bool>()) return "a root's sum is wrong";
  }
  return "ok";
}

TEST(Collectives, AmongProcesses) {
  for (const bool launcher_hosts : {true, false}) {
    const Processes three(3, launcher_hosts, use_all);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(three.answer(rank), "ok");
  }
}

// With six workers, those that are not the lost one's neighbours in Gloo's pattern learn of it too.
TEST(Collectives, AKilledWorkerIsAnErrorThatNamesIt) {
  const Processes six(6, true, [](const World& world) {
    const auto all = make_collectives(world, "test");
    const at::Tensor sum = at::ones({1 << 20});
    for (int step = 0;; ++step) {
      if (world.rank == 2 && step == 3) raise(SIGKILL);
      all->all_reduce_sum(sum).wait();
    }
    return "";
  });
  for (const int rank : {0, 1, 3, 4, 5}) {
    EXPECT_EQ(six.answer(rank), "all-reduce failed on rank " + std::to_string(rank) + ": worker 2 is gone");
  }
  EXPECT_EQ(six.answer(2), "signal 9");
}

TEST(Collectives, TheDeathOfTheStoresHostIsAnErrorThatNamesIt) {
  const Processes three(3, false, [](const World& world) {
    const auto all = make_collectives(world, "test");
    all->all_reduce_sum(at::ones({10})).wait();  // all have come
    if (world.rank == 0) raise(SIGKILL);
    all->broadcast(at::ones({10}), 0).wait();
    return "";
  });
  // Without a store, a second worker cannot know that the first has ended because of the failure.
  for (const int rank : {1, 2}) {
    EXPECT_THAT(three.answer(rank), AllOf(HasSubstr("broadcast failed on rank " + std::to_string(rank)),
                                          testing::ContainsRegex("(worker 0 is|workers 0, [12] are) gone")));
  }
}

// With operations left in Gloo's queue, the destructor must not wait for them.
TEST(Collectives, AfterAFailureNothingHangs) {
  const Processes three(3, true, [](const World& world) -> std::string {
    const Time start = Clock::now();
    std::string first, second;
    {
      const auto all = make_collectives(world, "test");
      std::vector<Collectives::Pending> pending;
      for (int i = 0; i < 8; ++i) {
        if (world.rank == 1 && i == 4) raise(SIGKILL);
        first = refusal([&] { pending.push_back(all->all_reduce_sum(at::ones({100'000}))); });
        if (first != "accepted") break;
      }
      if (first == "accepted")
        first = refusal([&] {
          for (auto& one : pending) one.wait();
        });
      second = refusal([&] { all->all_reduce_sum(at::ones({1})); });
    }
    if (first.find("worker 1 is gone") == std::string::npos) return first;
    if (second.find("worker 1 is gone") == std::string::npos) return second;
    return seconds(Clock::now() - start) < 60 ? "ended" : "hung";
  });
  EXPECT_EQ(three.answer(0), "ended");
  EXPECT_EQ(three.answer(2), "ended");
}

TEST(Collectives, AmongThreads) {
  for (const int n : {1, 2, 3}) {
    on_threads_of(World::threads(n), [](World& world) { EXPECT_EQ(use_all(world), "ok"); });
  }
}

TEST(Collectives, SayWhoHasNotCome) {
  std::vector<World> worlds = World::threads(3);
  worlds.pop_back();
  on_threads_of(worlds, [](World& world) {
    world.timeouts.meet = 3s;
    EXPECT_THAT(refusal([&] { make_collectives(world, "test"); }),
                AllOf(HasSubstr("rank " + std::to_string(world.rank)), HasSubstr("worker 2 has not come")));
  });
}

// The life sign of a worker that has died refuses. A restarted worker's answers, but Gloo waits for
// the one before.
TEST(Collectives, WhoDiesOrWasRestartedOnTheWayIsAnErrorInTime) {
  const Descriptor alive = listen_at(resolve("127.0.0.1", 0));
  const std::string not_one = "worker 2 has no address in the store, but ";
  for (const auto& [place, meet, said] :
       std::vector<std::tuple<std::string, std::chrono::seconds, std::string>>{
           {"1 127.0.0.1", 3'600s, "worker 2 is gone"},
           {std::to_string(bound_address(alive).port()) + " 127.0.0.1", 1s,
            "the workers have not connected within 1.0 s (all are alive)"},
           {"", 3'600s, not_one},
           {"99999 127.0.0.1", 3'600s, not_one},
           {"1 somewhere", 3'600s, not_one},
           {"somewhere", 3'600s, not_one}}) {
    std::vector<World> worlds = World::threads(3);
    worlds[2].store->set("life/test/2", place);
    worlds.pop_back();
    on_threads_of(worlds, [&, meet = meet, said = said](World& world) {
      world.timeouts.meet = meet;
      EXPECT_THAT(
          refusal([&] { make_collectives(world, "test"); }),
          AllOf(HasSubstr("rank " + std::to_string(world.rank)), HasSubstr(said), Not(HasSubstr("\n"))));
    });
  }
}

// Each look at it leaves a connection in its queue, while the worker waits for others.
TEST(Collectives, ALifeSignAnswersHoweverOftenItIsLookedAt) {
  const Descriptor alive = listen_at(resolve("127.0.0.1", 0));
  World world = World::threads(2)[0];
  world.store->set("life/test/1", fmt::format("{} 127.0.0.1", bound_address(alive).port()));
  world.timeouts.meet = 3'600s;
  std::atomic<bool> enough = false;
  world.interrupted = [&] { return enough.load(); };
  std::thread worker([&] {
    EXPECT_THAT(refusal([&] { make_collectives(world, "test"); }), HasSubstr("worker 0 was interrupted"));
  });
  const LifeSign sign = LifeSign::from_line(world.store->get("life/test/0", 60s), 0);
  const SocketAddress place = resolve(sign.host, sign.port);
  constexpr int kLooks = SOMAXCONN + 100;
  int answers = 0;
  while (answers < kLooks && somebody_listens(place, 20s)) ++answers;
  EXPECT_EQ(answers, kLooks);
  enough = true;
  worker.join();
}

TEST(Collectives, ADeathOfWhichTheLauncherTellsEndsTheWait) {
  const MeetingPoint meeting_point;
  auto variables = torchruns(0, 3, 1, true);
  variables.insert(meeting_point.variable());
  const Environment environment(variables);
  const World world = World::from_environment({.meet = 3'600s});
  std::thread launcher([&] {
    std::this_thread::sleep_for(100ms);
    meeting_point.ended(1, "was killed by signal 9");
  });
  EXPECT_EQ(
      refusal([&] { make_collectives(world, "test"); }),
      "rank 0 cannot join the collectives of 3 workers: worker 1 has not come: it was killed by signal 9");
  launcher.join();
  EXPECT_EQ(world.fate(1), "was killed by signal 9");
  EXPECT_EQ(world.fate(2), "");
}

TEST(Collectives, ASilentWorkerIsAnErrorAfterTheTimeout) {
  std::promise<void> said;
  on_threads_of(World::threads(2), [&](World& world) {
    world.timeouts.stalled = 1s;
    const auto all = make_collectives(world, "test");
    if (world.rank == 0) {
      EXPECT_THAT(refusal([&] { all->all_reduce_sum(at::ones({10})).wait(); }),
                  AllOf(HasSubstr("all-reduce failed on rank 0: "), HasSubstr("all workers are alive"),
                        Not(HasSubstr("\n"))));
      said.set_value();
    } else {
      said.get_future().wait_for(60s);
    }
  });
}

TEST(Collectives, NeedAStoreThatGlooCanUse) {
  World world = World::alone();
  world.store = std::make_shared<MemoryStore>();
  EXPECT_THROW(make_collectives(world, "test"), UsageError);
}

TEST(WorldFromEnvironment, WithoutVariablesIsAWorldOfOne) {
  const Environment environment({});
  const World world = World::from_environment({.meet = 5s});
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.timeouts.meet, 5s);
  EXPECT_EQ(use_all(world), "ok");
}

TEST(WorldFromEnvironment, TakesTheVariablesAndTheToken) {
  const HostedStore hosted = launchers_store();
  auto variables = torchruns(3, 8, hosted.port, true);
  variables["LOCAL_RANK"] = "1";
  variables["LOCAL_WORLD_SIZE"] = "2";
  variables["STARLING_SOCKET_IFNAME"] = "lo";
  variables["STARLING_TOKEN"] = "a secret of 20 bytes";
  {
    const Environment environment(variables);
    EXPECT_THAT(refusal([] { World::from_environment(); }),
                HasSubstr("loopback"));  // eight workers on four hosts
  }
  variables["LOCAL_RANK"] = "3";
  variables["LOCAL_WORLD_SIZE"] = "8";
  const Environment environment(variables);
  const World world = World::from_environment();
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 8);
  EXPECT_EQ(world.local_rank, 3);
  EXPECT_EQ(world.local_size, 8);
  EXPECT_EQ(world.address, "127.0.0.1");
  EXPECT_EQ(world.token, "a secret of 20 bytes");
  EXPECT_TRUE(world.make_transport);
}

TEST(WorldFromEnvironment, WorkersOfOneHostWithoutATokenShareARandomOne) {
  const HostedStore hosted = launchers_store();
  const auto joined = [&](int rank) {
    const Environment environment(torchruns(rank, 2, hosted.port, true));
    return World::from_environment();
  };
  const World a = joined(0), b = joined(1);
  EXPECT_EQ(a.token.size(), 64U);
  EXPECT_EQ(a.token, b.token);
}

// A restarted run must not see the keys of the attempt before.
TEST(WorldFromEnvironment, KeepsAttemptsApart) {
  const HostedStore hosted = launchers_store();
  auto variables = torchruns(0, 1, hosted.port, true);
  const auto world_of_attempt = [&](const std::string& attempt) {
    variables["TORCHELASTIC_RESTART_COUNT"] = attempt;
    const Environment environment(variables);
    return World::from_environment();
  };
  world_of_attempt("0").store->set("key", "stale");
  EXPECT_EQ(world_of_attempt("0").store->get("key", 5s), "stale");
  EXPECT_THROW(world_of_attempt("1").store->get("key", 20ms), Error);
}

TEST(WorldFromEnvironment, NamesTheVariableThatIsWrong) {
  const auto good = torchruns(1, 4, 29'500, true);
  const auto refusal = [&](const std::string& name, const std::string& value) {
    auto variables = good;
    variables[name] = value;
    const Environment environment(variables);
    return starling::refusal<UsageError>([] { World::from_environment({.meet = 1s}); });
  };
  for (const auto& [name, value] : good) {
    if (name.starts_with("TORCHELASTIC")) continue;
    EXPECT_THAT(refusal(name, ""), AllOf(HasSubstr(name + " is not set"), Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(refusal("RANK", "4"), AllOf(HasSubstr("RANK='4'"), HasSubstr("from 0 to 3")));
  EXPECT_THAT(refusal("RANK", "one"), HasSubstr("RANK='one'"));
  EXPECT_THAT(refusal("RANK", "1 "), HasSubstr("RANK='1 '"));
  EXPECT_THAT(refusal("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE='0'"));
  EXPECT_THAT(refusal("LOCAL_WORLD_SIZE", "5"),
              AllOf(HasSubstr("LOCAL_WORLD_SIZE='5'"), HasSubstr("from 1 to 4")));
  EXPECT_THAT(refusal("LOCAL_RANK", "-1"), HasSubstr("LOCAL_RANK='-1'"));
  EXPECT_THAT(refusal("MASTER_PORT", "65536"), HasSubstr("MASTER_PORT='65536'"));
  EXPECT_THAT(refusal("MASTER_ADDR", "no.such.host.invalid"),
              HasSubstr("MASTER_ADDR='no.such.host.invalid'"));
  EXPECT_THAT(refusal("STARLING_TRANSPORT", "pigeon"),
              AllOf(HasSubstr("STARLING_TRANSPORT='pigeon'"), HasSubstr("mapped"), HasSubstr("tcp")));
  EXPECT_THAT(refusal("STARLING_TRANSPORT", "maped"), HasSubstr("is not allowed, did you mean mapped?: "));
  EXPECT_THAT(refusal("STARLING_TLS", "certs"), HasSubstr("is not allowed, did you mean cert?: "));
  EXPECT_THAT(refusal("STARLING_TLS", "yes"),
              AllOf(HasSubstr("STARLING_TLS='yes'"), HasSubstr("psk"), HasSubstr("cert")));
  EXPECT_THAT(refusal("STARLING_TLS", "cert"),
              HasSubstr("STARLING_TLS_CERT is not set, and STARLING_TLS is cert"));
  EXPECT_THAT(refusal("STARLING_TLS_KEY", "/no/such/file"),
              HasSubstr("STARLING_TLS_KEY is set, and STARLING_TLS is not set"));
  EXPECT_THAT(refusal("STARLING_REJOIN", "yes"), HasSubstr("STARLING_REJOIN='yes' is not allowed: 1"));
  EXPECT_THAT(refusal("STARLING_PARTITION", "pauses"),
              HasSubstr("STARLING_PARTITION='pauses' is not allowed, did you mean pause?: continue ("));
  for (const char* seconds : {"0", "3601", "nan", "5s", "-1"})
    EXPECT_THAT(refusal("STARLING_SILENT", seconds), HasSubstr("is not allowed: 0.1 to 3600, the seconds"));
  EXPECT_THAT(refusal("STARLING_INITIAL_SIZE", "5"), HasSubstr("='5' is not allowed: 1 to 4"));
  EXPECT_THAT(refusal("STARLING_INITIAL_SIZE", "3"), HasSubstr("needs STARLING_REJOIN=1"));
  EXPECT_THAT(refusal("STARLING_SOCKET_IFNAME", "nowhere0"),
              AllOf(HasSubstr("STARLING_SOCKET_IFNAME='nowhere0'"), HasSubstr("lo")));
  EXPECT_THAT(refusal("STARLING_TOKEN_FILE", "/no/such/file"),
              HasSubstr("STARLING_TOKEN_FILE='/no/such/file'"));
}

TEST(TimeoutsFromEnvironment, FollowTheOneThatIsSet) {
  const auto with = [](const std::optional<std::string>& value) {
    return timeouts_from_environment([&](const std::string&) { return value; }, {.meet = 7s, .silent = 3s});
  };
  EXPECT_EQ(with(std::nullopt).silent, 3s);
  const Timeouts set = with("0.25");
  EXPECT_EQ(set.meet, 7s);
  EXPECT_EQ(set.silent, 250ms);
  EXPECT_EQ(set.stalled, 30s);
}

TEST(TlsFromEnvironment, SaysHowAndNamesTheFiles) {
  const auto read = [](const std::map<std::string, std::string>& variables) {
    return tls_from_environment([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  const Folder folder;
  const std::string key = folder / "key";
  spill(key, "secret");
  std::map<std::string, std::string> all{{"STARLING_TLS", "cert"},
                                         {"STARLING_TLS_CERT", "c.pem"},
                                         {"STARLING_TLS_KEY", key},
                                         {"STARLING_TLS_CA", "ca.pem"}};
  EXPECT_FALSE(read({}));
  ASSERT_TRUE(read({{"STARLING_TLS", "psk"}}));
  EXPECT_EQ(read({{"STARLING_TLS", "psk"}})->certificate, "");
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  ASSERT_TRUE(read(all));
  EXPECT_EQ(read(all)->certificate + read(all)->key + read(all)->authority, "c.pem" + key + "ca.pem");
  std::filesystem::permissions(key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THAT(starling::refusal<UsageError>([&] { read(all); }),
              AllOf(HasSubstr("STARLING_TLS_KEY="), HasSubstr("chmod 600")));
  all["STARLING_TLS"] = "psk";
  EXPECT_THAT(starling::refusal<UsageError>([&] { read(all); }),
              HasSubstr("STARLING_TLS_CERT is set, and STARLING_TLS is psk"));
  EXPECT_THAT(starling::refusal<UsageError>([&] {
                transport_from_environment(
                    [](const std::string& name) {
                      return std::optional<std::string>(name == "STARLING_TRANSPORT" ? "c10d" : "psk");
                    },
                    true);
              }),
              HasSubstr("STARLING_TLS does not protect"));
}

// The setting reaches the edges: these two do not speak the same.
TEST(TlsFromEnvironment, ReachesTheTransports) {
  for (const char* name : {"tcp", "mapped"}) {
    World world = loopback_world(2);
    world.timeouts.meet = 500ms;
    Recorder recorders[2];
    std::unique_ptr<Transport> transports[2];
    for (const int rank : {0, 1}) {
      world.rank = rank;
      transports[rank] =
          own_transport(name, rank == 1 ? std::optional(TlsOptions{}) : std::nullopt)(world, "test");
      transports[rank]->start(recorders[rank]);
    }
    for (const int rank : {0, 1}) transports[rank]->open(1 - rank);
    ASSERT_TRUE(recorders[1].wait_for(Recorder::Kind::lost, 0));
    EXPECT_THAT(recorders[1].reasons(Recorder::Kind::lost).at(0),
                HasSubstr("is STARLING_TLS the same on all workers?"));
    for (const int rank : {0, 1}) transports[rank]->stop();
  }
}

TEST(WorldFromEnvironment, AnUnreachableStoreIsAnErrorThatSaysWhere) {
  auto variables = torchruns(1, 2, 1, true);
  const Environment environment(variables);
  EXPECT_THAT(refusal([] { World::from_environment({.meet = 1s}); }),
              AllOf(HasSubstr("127.0.0.1 port 1"), Not(HasSubstr("\n"))));
}

// Its backlog takes the connection, and nobody ever answers.
TEST(WorldFromEnvironment, AListenerThatIsNoStoreIsAnErrorInTime) {
  const Descriptor listener = listen_at(resolve("127.0.0.1", 0));
  const Environment environment(torchruns(1, 2, bound_address(listener).port(), true));
  EXPECT_THAT(refusal([] { World::from_environment({.meet = 1s}); }),
              AllOf(HasSubstr("somebody listens there, but has not answered as a store within 1000 ms"),
                    Not(HasSubstr("\n"))));
  std::atomic<bool> stop = false;
  std::thread user([&] {
    std::this_thread::sleep_for(200ms);
    stop = true;
  });
  EXPECT_THAT(refusal([&] { World::from_environment({.meet = 600s}, [&] { return stop.load(); }); }),
              HasSubstr("interrupted while joining the store"));
  user.join();
}

TEST(WorldFromEnvironment, InterfacesMayBeAList) {
  const HostedStore hosted = launchers_store();
  auto variables = torchruns(0, 1, hosted.port, true);
  for (const char* list : {"nowhere0,lo", "lo,nowhere0", "lo,lo"}) {
    variables["GLOO_SOCKET_IFNAME"] = list;
    const Environment environment(variables);
    EXPECT_EQ(World::from_environment({.meet = 5s}).address, "127.0.0.1") << list;
  }
  for (const char* list : {"nowhere0,nowhere1", ",", "lo0 ,"}) {
    variables["GLOO_SOCKET_IFNAME"] = list;
    const Environment environment(variables);
    EXPECT_THAT(refusal([] { World::from_environment({.meet = 5s}); }),
                HasSubstr(std::string("GLOO_SOCKET_IFNAME='") + list + "' is no network interface"));
  }
}

// Workers on several hosts know rank 0 by one address, and it serves the store there alone.
TEST(WorldFromEnvironment, TheStoreListensAtTheMastersAddressOnly) {
  const std::vector<Interface> all = interfaces();
  const auto outward = std::ranges::find_if(all, [](const Interface& i) { return !i.address.is_loopback(); });
  if (outward == all.end()) GTEST_SKIP() << "this machine has no interface but the loopback";
  const std::string host = outward->address.host();
  const int port = bound_address(listen_at(resolve(host, 0))).port();
  auto variables = torchruns(0, 2, port, false);
  variables["LOCAL_WORLD_SIZE"] = "1";
  variables["MASTER_ADDR"] = host;
  variables["STARLING_TOKEN"] = "a secret of 20 bytes";
  const Environment environment(variables);
  const World world = World::from_environment({.meet = 60s});
  world.store->set("key", "value");
  EXPECT_TRUE(somebody_listens(resolve(host, port), 5s));
  EXPECT_FALSE(somebody_listens(resolve("127.0.0.1", port), 5s));
}

TEST(WorldFromEnvironment, ATakenPortIsAnErrorThatSaysSo) {
  const Descriptor taken = listen_at(resolve("127.0.0.1", 0));
  const int port = bound_address(taken).port();
  const Environment environment(torchruns(0, 2, port, false));
  EXPECT_THAT(refusal([] { World::from_environment({.meet = 1s}); }),
              AllOf(HasSubstr("127.0.0.1 port " + std::to_string(port)), HasSubstr("in use"),
                    HasSubstr("rank 0 hosts the store: 127.0.0.1 (MASTER_ADDR)"), Not(HasSubstr("\n"))));
}

TEST(WorldFromEnvironment, TheTokenFileMustBeTheOwnersAlone) {
  const Folder folder;
  const std::string path = folder / "token";
  std::ofstream(path) << "a secret of 20 bytes\n";
  const HostedStore hosted = launchers_store();
  auto variables = torchruns(0, 1, hosted.port, true);
  variables["STARLING_TOKEN_FILE"] = path;
  variables["STARLING_TOKEN"] = "another";
  const Environment environment(variables);

  chmod(path.c_str(), 0640);
  EXPECT_THAT(refusal([] { World::from_environment(); }), AllOf(HasSubstr(path), HasSubstr("chmod 600")));
  chmod(path.c_str(), 0600);
  EXPECT_EQ(World::from_environment().token, "a secret of 20 bytes");
  std::ofstream(path) << "secret\n";
  EXPECT_THAT(refusal([] { World::from_environment(); }),
              AllOf(HasSubstr("the token of STARLING_TOKEN_FILE has 6 bytes"), HasSubstr("at least 16")));
  std::ofstream(path) << "\n";
  EXPECT_THAT(refusal([] { World::from_environment(); }), HasSubstr("is empty"));
  setenv("STARLING_TOKEN_FILE", "/dev/null", 1);
  EXPECT_THAT(refusal([] { World::from_environment(); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace starling
