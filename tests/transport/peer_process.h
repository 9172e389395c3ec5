// The program transport_peer (peer.cpp), beside the tests, as a process to be killed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/core/descriptor.h"
#include "starling/core/process.h"

namespace starling {

class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments) {
    int from[2], to[2];
    EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
    from_ = Descriptor(from[0]), to_ = Descriptor(to[1]);
    const Descriptor its_input(to[0]), its_output(from[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, its_input.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, its_output.get(), STDOUT_FILENO);
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").replace_filename("transport_peer");
    arguments.insert(arguments.begin(), program);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointers_to(arguments).data(), environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
  }
  PeerProcess(const PeerProcess&) = delete;
  ~PeerProcess() { kill(); }

  void say(const std::string& word) {
    const std::string line = word + "\n";
    EXPECT_EQ(write(to_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  std::string hear() {
    std::string line;
    for (char c; read(from_.get(), &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  // By SIGKILL; it has ended when this returns.
  void kill() {
    if (pid_ < 0) return;
    EXPECT_EQ(::kill(pid_, SIGKILL), 0);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Descriptor from_, to_;
};

}  // namespace starling
