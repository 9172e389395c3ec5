// The store at which workers meet: its waits, its end, and hosts that do not answer.
#include "starling/transport/c10d/store.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "signals.h"
#include "starling/core/clock.h"
#include "starling/core/descriptor.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/socket.h"
#include "starling/world/environment.h"
#include "starling/world/world.h"
#include "tests/eventually.h"
#include "tests/refusal.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

// Uses the store until it is not lost.
testing::AssertionResult is_back(const std::function<void()>& use) {
  return eventually([&] { return refusal<StoreLost>(use) == "accepted"; });
}

TEST(C10dStore, WaitsForAKeyAndNamesTheOneThatDoesNotCome) {
  const World world = World::alone();
  std::thread other([&] {
    std::this_thread::sleep_for(100ms);
    world.store->set("late", std::string("a\0b", 3));
  });
  EXPECT_EQ(world.store->get("late", 60s), std::string("a\0b", 3));
  other.join();
  EXPECT_THAT(refusal([&] { world.store->get("never", 20ms); }),
              AllOf(HasSubstr("'never'"), HasSubstr("within 0.02 s in the store")));
  EXPECT_THAT(refusal([&] { world.store->get("never", 1h, [] { return true; }); }),
              HasSubstr("interrupted while nobody had set the key 'never'"));
}

// One thread waits for a key that another one sets through the same connection.
TEST(C10dStore, AThreadThatWaitsHoldsUpNoOther) {
  const HostedStore hosted = launchers_store();
  const Environment environment(torchruns(0, 1, hosted.port, true));
  const World world = World::from_environment();
  std::string got;
  std::thread waiting([&] { got = world.store->get("key", 60s); });
  std::this_thread::sleep_for(100ms);
  world.store->set("key", "value");  // held up, it would come after the other's time
  waiting.join();
  EXPECT_EQ(got, "value");
}

// By two connections: a set() that does not wait for the store might come after a later get().
TEST(C10dStore, WhatWasSetIsThere) {
  const HostedStore hosted = launchers_store();
  const auto joined = [&](int rank) {
    const Environment environment(torchruns(rank, 2, hosted.port, true));
    return World::from_environment();
  };
  const World a = joined(0), b = joined(1);
  for (int i = 0; i < 5'000; ++i) {
    const std::string key = std::to_string(i);
    a.store->set(key, "value");
    ASSERT_EQ(b.store->get(key, 0ms), "value") << key;
  }
}

// torch writes a stack trace to stderr when it meets a lost server.
TEST(C10dStore, AServerThatIsGoneIsFoundAgainWhenItIsBack) {
  std::optional<HostedStore> hosted = launchers_store();
  const int port = hosted->port;
  const Environment environment(torchruns(0, 1, port, true));
  const World world = World::from_environment();
  hosted.reset();
  std::this_thread::sleep_for(300ms);  // an answer of just now is believed
  testing::internal::CaptureStderr();
  EXPECT_EQ(refusal([&] { world.store->get("key", 1h); }),
            "store: cannot get the key 'key': nobody listens at 127.0.0.1 port " + std::to_string(port));
  EXPECT_EQ(refusal([&] { world.store->set("key", ""); }),
            "store: cannot set the key 'key': nobody listens at 127.0.0.1 port " + std::to_string(port));
  EXPECT_EQ(world.fate(0), "");
  hosted = host_store("127.0.0.1", port, 60s);
  EXPECT_TRUE(is_back([&] { world.store->set("key", "value"); }));
  EXPECT_EQ(world.store->get("key", 0ms), "value");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// One of the workers that can host it does so, and the others find it.
TEST(C10dStore, AServerThatStaysGoneIsHostedByAnotherWorker) {
  std::optional<HostedStore> hosted = launchers_store();
  const int port = hosted->port;
  std::atomic<int> hosts = 0, tries = 0;
  const auto host_again = [&] {
    ++tries;
    HostedStore again = host_store("127.0.0.1", port, 60s);
    ++hosts;
    return again.store;
  };
  const auto joined = [&](C10dStore::HostAgain host) {
    return std::make_unique<C10dStore>(join_store("127.0.0.1", port, 60s), 300ms, std::move(host));
  };
  const auto one = joined(host_again), other = joined(host_again), elsewhere = joined(nullptr);
  one->set("key", "before");
  hosted.reset();
  std::this_thread::sleep_for(300ms);  // an answer of just now is believed
  EXPECT_THAT(refusal<StoreLost>([&] { one->look("key"); }), HasSubstr("nobody listens"));
  EXPECT_EQ(tries, 0) << "at once";
  EXPECT_TRUE(is_back([&] { other->look("key"), one->look("key"), elsewhere->look("key"); }));
  EXPECT_EQ(hosts, 1);
  EXPECT_EQ(elsewhere->look("key"), std::nullopt) << "it is empty";
  one->set("key", "after");
  EXPECT_EQ(other->look("key"), "after");
}

// The kernel goes on to accept connections for a stopped process.
TEST(C10dStore, AHostThatDoesNotAnswerIsAnErrorInTime) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t host = fork();
  if (host == 0) {
    alarm(100);
    const HostedStore hosted = launchers_store();
    if (write(told[1], &hosted.port, sizeof hosted.port) != sizeof hosted.port) _exit(1);
    pause();
    _exit(0);
  }
  int port = 0;
  ASSERT_EQ(read(told[0], &port, sizeof port), ssize_t(sizeof port));
  const auto joined = [&] { return std::make_unique<C10dStore>(join_store("127.0.0.1", port, 60s), 300ms); };
  const auto reads = joined(), writes = joined(), clones = joined(), waits = joined();
  writes->set("key", "value");
  kill(host, SIGSTOP);
  ASSERT_EQ(waitpid(host, nullptr, WUNTRACED), host);
  const std::string silent =
      "the store at 127.0.0.1 port " + std::to_string(port) + " has not answered within 0.3 s";
  EXPECT_EQ(refusal<StoreLost>([&] { reads->get("key", 0ms); }),
            "store: cannot get the key 'key': " + silent);
  EXPECT_EQ(refusal<StoreLost>([&] { reads->look("key"); }), "store: cannot get the key 'key': " + silent);
  // The host may set it when it wakes.
  EXPECT_EQ(refusal<StoreLost>([&] { writes->set("other", ""); }),
            "store: cannot set the key 'other': " + silent);
  EXPECT_EQ(refusal<StoreLost>([&] { clones->clone("again"); }), "store: cannot join it again: " + silent);
  EXPECT_EQ(refusal([&] { waits->get("key", 1h, [] { return true; }); }),
            "store: interrupted, could not get the key 'key'");
  kill(host, SIGCONT);
  EXPECT_TRUE(is_back([&] { EXPECT_EQ(reads->look("key"), "value"); }));
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
}

// A worker that is stopped inside an operation holds the lock.
TEST(C10dStore, AFileThatStaysLockedIsAnErrorInTime) {
  static const PrivateFolder folder;  // threads that were left behind may use it after the test
  const std::string path = folder.path() / "store";
  C10dStore store(file_store(path), 300ms);
  store.set("key", "value");
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  EXPECT_EQ(refusal<StoreLost>([&] { store.get("key", 0ms); }),
            "store: cannot get the key 'key': the store in the file \"" + path +
                "\" has not answered within 0.3 s");
  EXPECT_EQ(refusal([&] { file_store(path); }), "cannot join the store in the file \"" + path +
                                                    "\": it has been locked for 5 s: is a worker stopped?");
}

// Those that ask are threads, which no other error may leave.
TEST(C10dStore, WithoutADescriptorItIsLostForAWhile) {
  const HostedStore hosted = launchers_store();
  C10dStore store(hosted.store);
  store.set("key", "value");
  std::this_thread::sleep_for(300ms);  // after a pause it looks for the server first
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit no_more = before;
  no_more.rlim_cur = static_cast<rlim_t>(Descriptor(dup(STDERR_FILENO)).get());  // the next number
  setrlimit(RLIMIT_NOFILE, &no_more);
  const std::string refused = refusal([&] { store.look("key"); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(refused, "store: cannot get the key 'key': cannot open a socket: Too many open files");
  EXPECT_TRUE(is_back([&] { EXPECT_EQ(store.look("key"), "value"); }));
}

TEST(C10dStore, ServesLoopbackOnlyAndEnds) {
  int port = 0;
  {
    const HostedStore hosted = launchers_store();
    port = hosted.port;
    EXPECT_TRUE(somebody_listens(resolve("127.0.0.1", port), 5s));
    EXPECT_FALSE(somebody_listens(resolve("127.0.0.2", port), 5s));
    for (const Interface& one : interfaces()) {
      if (one.address.is_loopback() || one.address.storage.ss_family != AF_INET) continue;
      EXPECT_FALSE(somebody_listens(resolve(one.address.host(), port), 5s)) << one.name;
    }
  }
  EXPECT_FALSE(somebody_listens(resolve("127.0.0.1", port), 5s));
}

// The queue has room for two at first, so the answer comes with the next packet, a second later.
TEST(Socket, ASignalIsNoAnswer) {
  const Descriptor listener = listen_at(resolve("127.0.0.1", 0));
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const SocketAddress place = bound_address(listener);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(somebody_listens(place, 5s));
  std::thread later([&] {
    std::this_thread::sleep_for(100ms);
    turn_away(listener);
  });
  const Signals signals(1ms);
  EXPECT_TRUE(somebody_listens(place, 60s));
  later.join();
}

TEST(MeetingPoint, IsAFolderOfItsUserAloneAndEnds) {
  auto meeting_point = std::make_unique<MeetingPoint>();
  auto variables = torchruns(0, 2, 1, true);
  variables.insert(meeting_point->variable());
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) variables.erase(name);
  const fs::path folder = meeting_point->variable().second;
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
  {
    const Environment environment(variables);
    const World a = World::from_environment();
    variables["RANK"] = "1", variables["LOCAL_RANK"] = "0";
    const Environment of_another(variables);
    const World b = World::from_environment();
    EXPECT_EQ(b.address, "127.0.0.1");
    a.store->set("key", "value");
    EXPECT_EQ(b.store->get("key", 5s), "value");
    meeting_point.reset();
    EXPECT_FALSE(fs::exists(folder));
    EXPECT_EQ(refusal<StoreLost>([&] { b.store->get("key", 1h); }),
              "store: cannot get the key 'key': the folder \"" + folder.string() + "\" is gone");
  }
  const auto refused = [&](const std::string& name, const std::string& value) {
    auto changed = variables;
    changed[name] = value;
    const Environment environment(changed);
    return refusal<UsageError>([] { World::from_environment(); });
  };
  EXPECT_THAT(refused("LOCAL_WORLD_SIZE", "1"),
              HasSubstr(" is for workers of one host, but LOCAL_WORLD_SIZE='1' of 2"));
  EXPECT_EQ(refused(kStoreFolder, "/usr"),
            "STARLING_STORE_FOLDER=\"/usr\": the folder must be yours, and closed to others: chmod 700 it");
}

}  // namespace
}  // namespace starling
