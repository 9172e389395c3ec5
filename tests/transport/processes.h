// Workers that are threads, or real processes, each in an environment of its own.
#pragma once

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/transport/c10d/socket.h"
#include "starling/transport/c10d/tcp_store.h"
#include "starling/world/world.h"
#include "tests/threads.h"

namespace starling {

// World reads exactly these variables while it lives.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "STARLING_TOKEN",
                             "STARLING_TOKEN_FILE",
                             "STARLING_STORE_FOLDER",
                             "STARLING_TRANSPORT",
                             "STARLING_TLS",
                             "STARLING_TLS_CERT",
                             "STARLING_TLS_KEY",
                             "STARLING_TLS_CA",
                             "STARLING_REJOIN",
                             "STARLING_INITIAL_SIZE",
                             "STARLING_PARTITION",
                             "STARLING_SILENT",
                             "STARLING_SOCKET_IFNAME",
                             "GLOO_SOCKET_IFNAME",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RESTART_COUNT",
                             "OMPI_COMM_WORLD_RANK",
                             "PMI_RANK",
                             "SLURM_STEP_ID",
                             "SLURM_NTASKS"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? value : "";
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) {
      if (value.empty()) {
        unsetenv(name.c_str());
      } else {
        setenv(name.c_str(), value.c_str(), 1);
      }
    }
  }

 private:
  std::map<std::string, std::string> before_;
};

inline std::map<std::string, std::string> torchruns(int rank, int size, int port, bool launcher_hosts) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_USE_AGENT_STORE", launcher_hosts ? "True" : "False"}};
}

// The store that torchrun serves.
inline HostedStore launchers_store() { return host_store("127.0.0.1", 0, std::chrono::seconds(60)); }

// n processes, each of which returns a line.
class Processes {
 public:
  // They find their worlds in the environment, as with torchrun.
  Processes(int n, bool launcher_hosts, const std::function<std::string(const World&)>& work)
      : Processes(n, launcher_hosts, [&](int rank, int port) {
          const Environment environment(torchruns(rank, n, port, launcher_hosts));
          return work(World::from_environment());
        }) {}

  // `port` of the loopback is the launcher's store, or free. The children are forked first, while
  // this process has no other threads.
  Processes(int n, bool launcher_hosts, const std::function<std::string(int rank, int port)>& work) {
    for (int rank = 0; rank < n; ++rank) {
      int port_pipe[2], answer_pipe[2];
      if (pipe(port_pipe) != 0 || pipe(answer_pipe) != 0) throw Error("pipe");
      const pid_t child = fork();
      if (child == 0) {
        alarm(100);
        int port = 0;
        if (read(port_pipe[0], &port, sizeof port) != sizeof port) _exit(3);
        std::string answer;
        try {
          answer = work(rank, port);
          // The test's own process must not go on in a child.
        } catch (const std::exception& failure) {
          answer = failure.what();
        }
        _exit(write(answer_pipe[1], answer.data(), answer.size()) == static_cast<ssize_t>(answer.size()) ? 0
                                                                                                         : 4);
      }
      close(port_pipe[0]);
      close(answer_pipe[1]);
      children_.push_back({child, port_pipe[1], answer_pipe[0]});
    }
    const std::optional<HostedStore> hosted =
        launcher_hosts ? std::optional(launchers_store()) : std::nullopt;
    const int port = hosted ? hosted->port : free_port();
    for (Child& child : children_) {
      if (write(child.port_pipe, &port, sizeof port) != sizeof port) throw Error("write");
      close(child.port_pipe);
    }
    for (Child& child : children_) {
      char buffer[4096];
      for (ssize_t n = 0; (n = read(child.answer_pipe, buffer, sizeof buffer)) > 0;) {
        child.answer.append(buffer, static_cast<std::size_t>(n));
      }
      close(child.answer_pipe);
      waitpid(child.id, &child.status, 0);
    }
  }

  // The work's result or its error; "signal 9" after a death.
  std::string answer(int rank) const {
    const Child& child = children_.at(static_cast<std::size_t>(rank));
    if (WIFSIGNALED(child.status)) return "signal " + std::to_string(WTERMSIG(child.status));
    return child.answer;
  }

 private:
  struct Child {
    pid_t id;
    int port_pipe, answer_pipe;
    std::string answer = {};
    int status = 0;
  };
  static int free_port() { return bound_address(listen_at(resolve("127.0.0.1", 0))).port(); }

  std::vector<Child> children_;
};

}  // namespace starling
