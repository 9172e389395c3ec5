// starling top RUN: the table of `starling status`, renewed in a terminal until q.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/status_text.h"
#include "cli/table.h"
#include "cli/usage.h"
#include "starling/core/clock.h"
#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling::cli {

namespace {

// ---------------------------------------------------------------- the screen

struct ScreenSize {
  std::size_t columns = 80, lines = 24;
  bool operator==(const ScreenSize&) const = default;
};

struct ScreenLine {
  std::string text;
  const char* style = "";  // an escape sequence
};

// The first thing that happened: a signal or a key; neither if the time came.
struct ScreenEvent {
  int signal = 0;
  char key = 0;
};

// The terminal of stdin and stdout. From enter() on its other screen is shown, and keys come at
// once; the destructor restores it. Signals that would end or stop the process are events instead.
class Screen {
 public:
  Screen() {
    if (tcgetattr(STDIN_FILENO, &before_) != 0)
      throw Error(fmt::format("top: the terminal cannot be asked for its mode: {}", std::strerror(errno)));
    sigemptyset(&events_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH})
      sigaddset(&events_, signal);
    pthread_sigmask(SIG_BLOCK, &events_, nullptr);
    signals_ = Descriptor(signalfd(-1, &events_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (signals_.get() < 0)
      throw Error(fmt::format("top: signals cannot be received: {}", std::strerror(errno)));
  }
  ~Screen() { leave(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void enter() {
    termios mode = before_;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
    mode.c_iflag &= ~static_cast<tcflag_t>(IXON);           // Ctrl-S would hold up the signals
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    const bool there = std::exchange(entered_, true);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
    send(there ? "" : "\x1b[?1049h\x1b[?25l\x1b[?7l");  // the other screen, no cursor, no wrapping
    drawn_ = {0, 0};
  }

  void leave() {
    if (!std::exchange(entered_, false)) return;
    send("\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l");
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }

  // Ctrl-Z: the shell has the terminal until it continues this process.
  void stop() {
    leave();
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &events_, nullptr);  // here it stops ..
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);     // .. and here while it is in the background
    pthread_sigmask(SIG_BLOCK, &events_, nullptr);
    enter();
  }

  static ScreenSize size() {
    winsize asked{};
    ScreenSize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &asked) != 0) return size;
    if (asked.ws_col > 0) size.columns = asked.ws_col;
    if (asked.ws_row > 0) size.lines = asked.ws_row;
    return size;
  }

  // Draws over what is there, without clearing it before: nothing flickers.
  void draw(const std::vector<ScreenLine>& lines, const ScreenSize& size) {
    std::string text = std::exchange(drawn_, size) == size ? "" : "\x1b[2J";
    text += "\x1b[H";
    for (std::size_t i = 0; i < size.lines; ++i) {
      const ScreenLine line = i < lines.size() ? lines[i] : ScreenLine{};
      if (i > 0) text += "\r\n";
      text += fmt::format("{}{:<{}.{}}\x1b[0m", line.style, line.text, size.columns, size.columns);
    }
    if (!send(text))
      throw Error(fmt::format("top: the terminal cannot be written to: {}", std::strerror(errno)));
  }

  // Blocks until `until`, or without it for as long as nothing happens.
  ScreenEvent wait(std::optional<Time> until) {
    std::array<pollfd, 2> files{pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
    constexpr double kLongest = 3600;  // seconds
    while (true) {
      const double left = until ? std::max(seconds(*until - Clock::now()), 0.0) : kLongest;
      const int ready =
          poll(files.data(), files.size(), static_cast<int>(std::ceil(1000 * std::min(left, kLongest))));
      if (ready < 0 && errno != EINTR && errno != EAGAIN)
        throw Error(fmt::format("top: cannot wait for the terminal: {}", std::strerror(errno)));
      if (ready == 0 && left == 0) return {};
      if (ready <= 0) continue;
      signalfd_siginfo got{};
      if (read(signals_.get(), &got, sizeof got) == static_cast<ssize_t>(sizeof got))
        return {.signal = static_cast<int>(got.ssi_signo)};
      if (files[1].revents == 0) continue;
      char key = 0;
      const ssize_t count = read(STDIN_FILENO, &key, 1);
      if (count == 1) return {.key = key};
      if (count == 0 || (errno != EINTR && errno != EAGAIN)) return {.signal = SIGHUP};  // it is gone
    }
  }

 private:
  static bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = write(STDOUT_FILENO, text.data(), text.size());
      if (count >= 0) {
        text.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN) {  // another process made the terminal non-blocking
        pollfd file{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
        poll(&file, 1, -1);
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  termios before_{};
  sigset_t events_{};
  Descriptor signals_;
  bool entered_ = false;
  ScreenSize drawn_{0, 0};
};

// ---------------------------------------------------------------- what it shows

constexpr const char* kReverse = "\x1b[7m";
constexpr const char* kFaint = "\x1b[2m";

const char* late_style() { return refuses_colour() ? "\x1b[1m" : "\x1b[30;43m"; }

// Less: further up. Workers of which it is not known come last.
double order_by_rank(const WorkerStatus& worker) { return worker.rank; }
double order_by_step(const WorkerStatus& worker) {
  return worker.step ? static_cast<double>(*worker.step) : std::numeric_limits<double>::infinity();
}
double order_by_waiting(const WorkerStatus& worker) {
  return worker.waiting_share ? -*worker.waiting_share : std::numeric_limits<double>::infinity();
}

struct TopOrder {
  const char* name;
  double (*key)(const WorkerStatus&);
};
constexpr std::array kTopOrders{TopOrder{"rank", order_by_rank}, TopOrder{"step", order_by_step},
                                TopOrder{"waiting", order_by_waiting}};

class TopView {
 public:
  // Throws UsageError if there is no run.
  explicit TopView(const std::string& folder) : run_(read_run_status(folder)) {}

  void renew() {
    try {
      run_ = read_run_status(std::string(run_.folder));
      trouble_.clear();
    } catch (const std::exception& error) {  // the folder is gone, or the run begins anew
      trouble_ = printable(error.what());
    }
  }
  void next_order() { order_ = (order_ + 1) % kTopOrders.size(); }
  void pause() { paused_ = !paused_; }
  bool paused() const { return paused_; }

  // As many as the screen has.
  std::vector<ScreenLine> lines(const ScreenSize& size) {
    std::vector<ScreenLine> all = head(size);
    const std::size_t room = size.lines > all.size() + 2 ? size.lines - all.size() - 2 : 0;
    std::vector<WorkerStatus> workers = sorted();
    const std::size_t shown = workers.size() <= room ? workers.size() : std::max<std::size_t>(room, 1) - 1;
    const auto late_after = std::count_if(workers.begin() + static_cast<std::ptrdiff_t>(shown), workers.end(),
                                          [](const WorkerStatus& w) { return w.late; });
    const std::size_t hidden = workers.size() - shown;
    workers.resize(shown);
    for (ScreenLine& line : table(workers, size)) all.push_back(std::move(line));
    if (hidden > 0 && room > 0)
      all.push_back({fmt::format("{} more worker{}{}", hidden, hidden == 1 ? "" : "s",
                                 late_after > 0 ? fmt::format(", {} of them late", late_after) : ""),
                     late_after > 0 ? late_style() : ""});
    all.resize(std::max<std::size_t>(size.lines, 1) - 1);
    all.push_back({fmt::format("{}q quit  p {}  s sort: {}", paused_ ? "paused  " : "",
                               paused_ ? "go on" : "pause", kTopOrders[order_].name),
                   kReverse});
    return all;
  }

 private:
  // A low screen has one line of it.
  std::vector<ScreenLine> head(const ScreenSize& size) const {
    constexpr std::size_t kLow = 12;  // lines
    std::vector<ScreenLine> all;
    if (!trouble_.empty()) all.push_back({"no new figures: " + trouble_, late_style()});
    const std::string text = status_head(run_);
    for (std::size_t from = 0, end; (end = text.find('\n', from)) != std::string::npos; from = end + 1)
      all.push_back({text.substr(from, end - from)});
    if (size.lines < kLow) {
      all.resize(1);
    } else {
      all.emplace_back();
    }
    return all;
  }

  // Late ones first. Ranks decide between equals.
  std::vector<WorkerStatus> sorted() const {
    std::vector<WorkerStatus> workers = run_.workers;
    std::ranges::stable_sort(
        workers, {}, [&](const WorkerStatus& w) { return std::pair(!w.late, kTopOrders[order_].key(w)); });
    return workers;
  }

  // Columns never become narrower while the screen keeps its size: they would come and go.
  std::vector<ScreenLine> table(const std::vector<WorkerStatus>& workers, const ScreenSize& size) {
    if (std::exchange(size_, size) != size) widths_.clear();
    const auto rows = worker_rows(workers, run_.now);
    for (const auto& row : rows) widen(widths_, row);
    const std::vector<std::size_t> fitting = columns_that_fit(size.columns);
    std::vector<ScreenLine> all;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<std::string> row;
      std::vector<std::size_t> widths;
      for (const std::size_t c : fitting) {
        row.push_back(rows[i][c]);
        widths.push_back(widths_[c]);
      }
      const auto* const worker = i == 0 ? nullptr : &workers[i - 1];
      all.push_back({table_line(row, widths), worker == nullptr ? kReverse
                                              : worker->late    ? late_style()
                                              : worker->process() == WorkerPhases::Process::gone ? kFaint
                                                                                                 : ""});
    }
    return all;
  }

  // One at least.
  std::vector<std::size_t> columns_that_fit(std::size_t screen) const {
    const auto columns = worker_columns();
    std::vector<std::size_t> kept(columns.size());
    std::iota(kept.begin(), kept.end(), std::size_t{0});
    std::ranges::sort(kept, {}, [&](std::size_t c) { return columns[c].place; });
    std::size_t count = 1, total = widths_[kept.front()];
    while (count < kept.size() && total + 2 + widths_[kept[count]] <= screen)
      total += 2 + widths_[kept[count++]];
    kept.resize(count);
    std::ranges::sort(kept);
    return kept;
  }

  RunStatus run_;
  std::string trouble_;  // of the latest reading
  std::size_t order_ = 0;
  bool paused_ = false;
  ScreenSize size_;
  std::vector<std::size_t> widths_;
};

struct TopOptions {
  std::string folder;
  double every = 1;  // seconds
};

int top(const TopOptions& options) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)
    throw UsageError("top: stdin and stdout must be a terminal; `starling status RUN` prints the table once");
  TopView view(options.folder);
  Screen screen;
  screen.enter();
  const auto later = [&] { return Clock::now() + of_seconds(options.every); };
  Time next = later();
  while (true) {
    const ScreenSize size = Screen::size();
    screen.draw(view.lines(size), size);
    const auto [signal, key] = screen.wait(view.paused() ? std::nullopt : std::optional(next));
    if (signal == SIGTSTP) {
      screen.stop();
    } else if (signal == SIGCONT) {
      screen.enter();
    } else if (signal != 0 && signal != SIGWINCH) {
      return 128 + signal;
    } else if (key == 'q') {
      return 0;
    } else if (key == 'p') {
      view.pause();
    } else if (key == 's') {
      view.next_order();
    }
    if (!view.paused() && Clock::now() >= next) {
      view.renew();
      next = later();
    }
  }
}

}  // namespace

void add_top(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("top", "Watch the workers of a run in a terminal; q quits");
  sub->footer("  starling top out/run");
  auto options = std::make_shared<TopOptions>();
  sub->add_option("run", options->folder, "output folder of `starling train`")->type_name("RUN")->required();
  add_time(*sub, "--every", options->every, "time between two readings, such as 500ms or 5s (default: 1s)",
           0.1);
  sub->callback([options, &command] { command = [options] { return top(*options); }; });
}

}  // namespace starling::cli
