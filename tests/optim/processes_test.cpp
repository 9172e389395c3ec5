// Three real processes and real faults: killed, stopped, damaged bytes, strangers at the port.
//
// This program is the parent that runs the tests. With STARLING_TEST_STEPS set, it is the worker.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/process.h"
#include "starling/optim/cuda/cuda.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/schemes/table.h"
#include "starling/transport/c10d/launcher.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/sockets.h"

extern char** environ;

namespace starling {
namespace {

using std::chrono::milliseconds;

// ---------------------------------------------------------------- the worker

int number(const char* name) { return std::atoi(std::getenv(name)); }

// A proxy before a worker's port. After the handshake it flips one random bit in every `every`
// bytes, in both directions. It lives until the process ends.
class BadWire {
 public:
  BadWire(int target, std::size_t every) : target_(target), every_(every) {
    std::thread([this] {
      while (true) {
        const int inner = accept(listener_, nullptr, nullptr);
        const int outer = inner < 0 ? -1 : dial(target_);
        if (outer < 0) {
          close(inner);
          continue;
        }
        std::thread([this, inner, outer] { pump(inner, outer); }).detach();
        std::thread([this, inner, outer] { pump(outer, inner); }).detach();
      }
    }).detach();
  }
  int port() const { return port_of(listener_); }
  static inline std::atomic<bool> quiet = false;

 private:
  void pump(int from, int to) {
    constexpr std::size_t kHandshake = 4096;  // longer than any
    std::mt19937_64 random(static_cast<std::uint64_t>(from));
    std::vector<unsigned char> bytes(64 * 1024);
    std::size_t passed = 0, next = kHandshake + random() % every_;
    while (true) {
      const ssize_t n = read(from, bytes.data(), bytes.size());
      if (n <= 0) break;
      const auto count = static_cast<std::size_t>(n);
      if (next < passed + count) {
        if (!quiet && next >= passed)
          bytes[next - passed] ^= static_cast<unsigned char>(1U << (random() % 8));
        next = passed + count + random() % every_;
      }
      passed += count;
      for (std::size_t sent = 0; sent < count;) {
        const ssize_t m = write(to, bytes.data() + sent, count - sent);
        if (m <= 0) break;
        sent += static_cast<std::size_t>(m);
      }
    }
    shutdown(to, SHUT_RDWR);
    shutdown(from, SHUT_RDWR);
  }
  const int target_, listener_ = listener();
  std::size_t every_;
};

// Publishes the address of a BadWire in place of the worker's own. Prints the worker's port.
class Meddler final : public Store {
 public:
  Meddler(std::shared_ptr<Store> store, tcp::Identity worker, std::size_t every)
      : store_(std::move(store)), worker_(std::move(worker)), every_(every) {}
  void set(const std::string& key, const std::string& value) override {
    const auto colon = value.rfind(':');
    if (key.find("/optimizer-0") == std::string::npos || colon == std::string::npos)
      return store_->set(key, value);
    const int port = std::atoi(value.c_str() + colon + 1);
    std::printf("port %d\n", port);
    if (every_ == 0) return store_->set(key, value);
    wire_ = std::make_unique<BadWire>(port, every_);
    store_->set(key,
                tcp::signed_address(worker_, worker_.rank, "127.0.0.1:" + std::to_string(wire_->port())));
  }
  std::optional<std::string> look(const std::string& key) override { return store_->look(key); }
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted) override {
    return store_->get(key, deadline, interrupted);
  }

 private:
  std::shared_ptr<Store> store_;
  const tcp::Identity worker_;
  std::size_t every_;
  std::unique_ptr<BadWire> wire_;
};
volatile sig_atomic_t stop = 0;

// Prints a line "step T committed C aborted A rounds R" for each step, and at the end a line "end
// WORKERS MEAN SUM0 SUM IN_PLACE". In the first ten steps, gradients pull each worker to its own
// centre. After that they are zero.
int work() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGUSR1, [](int) { stop = 1; });
  signal(SIGPIPE, SIG_IGN);  // from a BadWire with a closed other end
  World world = World::from_environment({.meet = milliseconds(60'000), .silent = milliseconds(3'000)});
  world.log = log_to_stderr(world.rank);
  const auto make = world.make_transport;
  world.make_transport = [make](const World& plain, const std::string& channel) {
    World meddled = plain;
    meddled.store =
        std::make_shared<Meddler>(plain.store, tcp::Identity{plain.rank, plain.size, channel, plain.token},
                                  static_cast<std::size_t>(number("STARLING_TEST_DAMAGE")));
    return make(meddled, channel);
  };
  const at::Device device{std::string(std::getenv("STARLING_TEST_DEVICE"))};
  if (device.is_cuda() && !find_cuda().empty()) throw Error(find_cuda());
  const auto all = [&](double value) { return at::full({300'000}, value, at::TensorOptions(device)); };
  const at::Tensor x = all(1.0).set_requires_grad(true);
  Options options{.topology = "complete",
                  .scheme = std::getenv("STARLING_TEST_SCHEME"),
                  .one_in = number("STARLING_TEST_ONE_IN")};
  if (number("STARLING_TEST_MAX_WAIT") != 0)
    options.max_wait = milliseconds(number("STARLING_TEST_MAX_WAIT"));
  Optimizer optimizer({x}, SGD{.lr = 0.1}, options, world);
  const auto sum = [&] { return x.detach().to(at::kDouble).sum().item<double>(); };
  double frozen = 0;
  const int steps = number("STARLING_TEST_STEPS");
  for (int t = 1; t <= steps && stop == 0; ++t) {
    std::this_thread::sleep_for(milliseconds(number("STARLING_TEST_STEP_MS")));
    x.mutable_grad() = t <= 10 ? x.detach() - 3.0 * (world.rank + 1) : all(0.0);
    optimizer.step();
    if (t == 10) frozen = sum();
    if (t == steps - 10) BadWire::quiet = true;
    const Statistics s = optimizer.statistics();
    std::printf("step %d committed %llu aborted %llu rounds %llu\n", t,
                static_cast<unsigned long long>(s.committed), static_cast<unsigned long long>(s.aborted),
                static_cast<unsigned long long>(s.rounds));
  }
  const double after = sum();
  Consensus average(optimizer);
  const Statistics s = optimizer.statistics();
  std::printf("end %d %.9f %.3f %.3f %.2f\n", average.workers(),
              x.detach().to(at::kDouble).mean().item<double>(), frozen, after,
              static_cast<double>(s.bytes_in_place) / static_cast<double>(s.bytes_sent));
  return 0;
}

// ---------------------------------------------------------------- the parent

struct Process {
  pid_t pid = -1;
  int out = -1, err = -1;
  std::string output, errors;
};

class Flock {
 public:
  explicit Flock(std::map<std::string, std::string> settings, int n = 3) {
    settings.insert({{"STARLING_TEST_STEPS", "100"},
                     {"STARLING_TEST_STEP_MS", "20"},
                     {"STARLING_TEST_MAX_WAIT", "0"},
                     {"STARLING_TEST_ONE_IN", "1"},
                     {"STARLING_TEST_SCHEME", "cta"},
                     {"STARLING_TEST_DEVICE", "cpu"},
                     {"STARLING_TEST_DAMAGE", "0"}});
    for (int rank = 0; rank < n; ++rank) {
      auto environment = settings;
      environment.insert({{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(n)},
                          {"LOCAL_RANK", std::to_string(rank)},
                          {"LOCAL_WORLD_SIZE", std::to_string(n)},
                          meeting_.variable(),
                          {"STARLING_TOKEN", "a token for this test"},
                          {"OMP_NUM_THREADS", "1"}});
      if (rank != 1) environment["STARLING_TEST_DAMAGE"] = "0";
      processes_.push_back(start(environment));
    }
  }
  ~Flock() {
    for (Process& p : processes_) {
      if (p.pid > 0) kill(p.pid, SIGKILL), waitpid(p.pid, nullptr, 0);
      close(p.out), close(p.err);
    }
  }
  void signal_to(int rank, int signal) { kill(of(rank).pid, signal); }
  const std::string& errors(int rank) { return read_all(), of(rank).errors; }
  const std::string& output(int rank) { return read_all(), of(rank).output; }

  // The numbers of the last line of `rank` that begins with this word.
  std::vector<double> last(int rank, const std::string& word) {
    std::vector<double> numbers;
    std::istringstream lines(output(rank));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(word + " ") || lines.eof()) continue;
      numbers.clear();
      std::istringstream words(line);
      for (std::string w; words >> w;) {
        char* end = nullptr;
        const double value = std::strtod(w.c_str(), &end);
        if (*end == '\0') numbers.push_back(value);
      }
    }
    return numbers;
  }
  double step_of(int rank) {
    const auto s = last(rank, "step");
    return s.empty() ? 0 : s[0];
  }
  // Waits for it, or fails: a hang is a failure.
  ::testing::AssertionResult until(const std::function<bool()>& happened) {
    for (int i = 0; i < 12000; ++i) {
      if (happened()) return ::testing::AssertionSuccess();
      std::this_thread::sleep_for(milliseconds(10));
    }
    auto failure = ::testing::AssertionFailure() << "did not happen";
    for (const Process& p : processes_) {
      failure << "\nworker " << &p - &processes_[0] << ": "
              << p.output.substr(p.output.size() - std::min<std::size_t>(p.output.size(), 300)) << p.errors;
    }
    return failure;
  }
  // Exit code, or -signal.
  int wait(int rank) {
    Process& p = of(rank);
    int status = 0;
    EXPECT_TRUE(until([&] { return read_all(), waitpid(p.pid, &status, WNOHANG) == p.pid; }));
    p.pid = -1;
    read_all();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  Process& of(int rank) { return processes_[static_cast<std::size_t>(rank)]; }
  static Process start(const std::map<std::string, std::string>& settings) {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw Error("no pipe");
    std::vector<std::string> variables;
    for (char** e = environ; *e != nullptr; ++e) variables.emplace_back(*e);
    for (const auto& [name, value] : settings) variables.push_back(name + "=" + value);
    const std::vector<char*> pointers = pointers_to(variables);  // before fork()
    Process p;
    p.pid = fork();
    if (p.pid == 0) {
      dup2(out[1], 1), dup2(err[1], 2);
      char name[] = "processes_test";
      char* arguments[] = {name, nullptr};
      execve("/proc/self/exe", arguments, pointers.data());
      _exit(127);
    }
    close(out[1]), close(err[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK), fcntl(err[0], F_SETFL, O_NONBLOCK);
    p.out = out[0], p.err = err[0];
    return p;
  }
  void read_all() {
    char bytes[4096];
    for (Process& p : processes_) {
      for (ssize_t n; (n = read(p.out, bytes, sizeof bytes)) > 0;)
        p.output.append(bytes, static_cast<std::size_t>(n));
      for (ssize_t n; (n = read(p.err, bytes, sizeof bytes)) > 0;)
        p.errors.append(bytes, static_cast<std::size_t>(n));
    }
  }
  MeetingPoint meeting_;
  std::vector<Process> processes_;
};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// All three end well, and no exchange was lost.
void expect_every_exchange_commits(Flock& flock) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(flock.wait(rank), 0) << flock.errors(rank);
    EXPECT_EQ(flock.last(rank, "step")[2], 0) << "aborted";
    EXPECT_EQ(flock.last(rank, "end")[0], 3);
  }
}

TEST(Processes, WithoutFaultsEveryExchangeCommits) {
  Flock flock({});
  expect_every_exchange_commits(flock);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_GT(flock.last(rank, "end")[4], 0.8) << "of the bytes were read in place";
    EXPECT_EQ(flock.errors(rank), "");
  }
}

// Kills worker 2 in the middle of training. The others finish together, with the same average.
void kill_worker_2(Flock& flock) {
  ASSERT_TRUE(
      flock.until([&] { return std::min({flock.step_of(0), flock.step_of(1), flock.step_of(2)}) >= 25; }));
  flock.signal_to(2, SIGKILL);
  EXPECT_EQ(flock.wait(2), -SIGKILL);
  for (int rank : {0, 1}) {
    EXPECT_EQ(flock.wait(rank), 0) << flock.errors(rank);
    EXPECT_EQ(flock.step_of(rank), 100);
    EXPECT_EQ(flock.last(rank, "end")[0], 2);
  }
  EXPECT_NEAR(flock.last(0, "end")[1], flock.last(1, "end")[1], 1e-6);
}

TEST(Processes, AKilledWorkerDoesNotStopTheOthersAndTheAverageIsTheirs) {
  Flock flock({});
  ASSERT_NO_FATAL_FAILURE(kill_worker_2(flock));
  for (int rank : {0, 1}) {
    EXPECT_EQ(count(flock.errors(rank), "worker 2 is gone"), 1U) << flock.errors(rank);
    EXPECT_EQ(count(flock.errors(rank), "\n"), 1U) << flock.errors(rank);
  }
}

// All workers share one GPU, and exchange through shared memory or over TCP.
TEST(Processes, OnAGpuAKilledWorkerDoesNotStopTheOthers) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string transport : {"mapped", "tcp"}) {
    SCOPED_TRACE(transport);
    Flock flock({{"STARLING_TEST_DEVICE", "cuda:0"}, {"STARLING_TRANSPORT", transport}});
    ASSERT_NO_FATAL_FAILURE(kill_worker_2(flock));
    for (int rank : {0, 1}) {
      EXPECT_EQ(flock.last(rank, "end")[4] > 0.8, transport == "mapped") << "of the bytes were read in place";
      EXPECT_EQ(count(flock.errors(rank), "worker 2 is gone"), 1U) << flock.errors(rank);
    }
  }
}

// The edges are directed: worker 0 has no sender any more, worker 1 still receives from 0.
TEST(Processes, AKilledWorkerDoesNotStopTwoVectorsAndEveryLossIsCounted) {
  Flock flock(std::map<std::string, std::string>{{"STARLING_TEST_SCHEME", "ceca-2p"}});
  ASSERT_NO_FATAL_FAILURE(kill_worker_2(flock));
  for (int rank : {0, 1}) {
    const auto last = flock.last(rank, "step");
    const double blocks = 5;  // of 300,000 numbers, each to one and from one in every round
    EXPECT_GT(last[2], 0) << "aborted";
    EXPECT_NEAR(last[1] + last[2], 2 * blocks * last[3], 2 * blocks);  // except those in flight
  }
}

TEST(Processes, AKilledWorkerDoesNotStopPushes) {
  for (const std::string scheme : {"push-sum", "push-diging", "async-push-sum", "async-push-pull"}) {
    SCOPED_TRACE(scheme);
    Flock flock(std::map<std::string, std::string>{{"STARLING_TEST_SCHEME", scheme}});
    ASSERT_NO_FATAL_FAILURE(kill_worker_2(flock));
    const double mean = flock.last(0, "end")[1];
    // For ten steps from 1, the workers descend towards 3, 6 and 9. The tracked gradient still has
    // the third worker's part.
    EXPECT_TRUE(mean > 2 && mean < (scheme_info(scheme).traits.exact ? 9 : 7)) << mean;
  }
}

TEST(Processes, WithMaxWaitAWorkerThatPausesIsBackInTheMixWhenItWakes) {
  Flock flock({{"STARLING_TEST_STEPS", "100000"}, {"STARLING_TEST_MAX_WAIT", "2000"}});
  ASSERT_TRUE(flock.until([&] { return flock.step_of(2) >= 15; }));
  flock.signal_to(2, SIGSTOP);
  const auto before = flock.last(2, "step");
  const double others = flock.step_of(0);
  std::this_thread::sleep_for(std::chrono::seconds(6));  // more than the 3 s to be silent
  EXPECT_TRUE(flock.until([&] { return flock.step_of(0) > others + 20; }));
  flock.signal_to(2, SIGCONT);
  ASSERT_TRUE(flock.until([&] { return flock.step_of(2) >= before[0] + 30; }));
  const auto after = flock.last(2, "step");
  const double blocks = 5;  // of 300,000 numbers
  const double lost = (after[2] - before[2]) / (2 * blocks), steps = after[0] - before[0];
  EXPECT_GT(flock.last(0, "step")[2], 10) << "the pause was real";
  EXPECT_LT(lost, 2) << "exchanges lost per edge";  // the one in flight, and blocks of the next one
  EXPECT_GE(after[1] - before[1], (steps - 6) * 2 * blocks);
  EXPECT_GT(after[3] - before[3], 0);
  for (int rank : {0, 1, 2}) flock.signal_to(rank, SIGUSR1);
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(flock.wait(rank), 0) << flock.errors(rank);
    EXPECT_EQ(flock.last(rank, "end")[0], 3);
  }
}

// All three end well, and their sum is what it was when it was frozen.
void expect_the_sum_is_kept(Flock& flock) {
  double frozen = 0, after = 0;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(flock.wait(rank), 0) << flock.errors(rank);
    const auto end = flock.last(rank, "end");
    ASSERT_EQ(end.size(), 5U) << flock.errors(rank);
    EXPECT_EQ(end[0], 3);
    frozen += end[2], after += end[3];
  }
  EXPECT_NEAR(after / frozen, 1, 1e-5);
}

TEST(Processes, DamagedBytesAreRefusedAndTheSumIsConserved) {
  Flock flock({{"STARLING_TEST_DAMAGE", "2000000"},
               {"STARLING_TEST_STEPS", "80"},
               {"STARLING_TRANSPORT", "tcp"}});  // shared memory leaves little on the wire
  expect_the_sum_is_kept(flock);
  double aborted = 0;
  for (int rank = 0; rank < 3; ++rank) aborted += flock.last(rank, "step")[2];
  EXPECT_GT(aborted, 0);  // the damage was real
}

// A worker that paused jumps to the others' round, which has another mask.
TEST(Processes, RandomKKeepsTheSumThroughAPause) {
  Flock flock(
      {{"STARLING_TEST_ONE_IN", "3"}, {"STARLING_TEST_MAX_WAIT", "3000"}, {"STARLING_TEST_STEPS", "200"}});
  ASSERT_TRUE(flock.until([&] { return flock.step_of(2) >= 30; }));
  flock.signal_to(2, SIGSTOP);
  const double there = flock.step_of(0);
  ASSERT_TRUE(flock.until([&] { return flock.step_of(0) >= there + 60; }));
  flock.signal_to(2, SIGCONT);
  expect_the_sum_is_kept(flock);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(count(flock.errors(rank), "damaged"), 0U) << flock.errors(rank);
    EXPECT_GT(flock.last(rank, "end").at(4), 0.8) << "of the bytes were read in place";
  }
  EXPECT_GT(flock.last(0, "step")[2], 0);  // the pause was real
}

TEST(Processes, StrangersAtThePortDisturbNothing) {
  Flock flock({});
  ASSERT_TRUE(flock.until([&] { return flock.step_of(0) >= 5; }));
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    const int fd = dial(static_cast<int>(flock.last(i % 3, "port")[0]));
    ASSERT_GE(fd, 0);
    std::vector<unsigned char> junk(1 + random() % 5000);
    for (auto& byte : junk) byte = static_cast<unsigned char>(random());
    (void)!send(fd, junk.data(), junk.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) {
      close(fd);  // the others stay and say nothing more
    }
  }
  expect_every_exchange_commits(flock);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (std::getenv("STARLING_TEST_STEPS") != nullptr) return starling::work();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
