#include "starling/transport/c10d/settings.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/mapped/mapped.h"
#include "starling/world/token.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMadeBy = "the file of rank 0's token";

[[noreturn]] void refuse_file(const std::string& path, std::string_view origin, std::string_view why) {
  throw UsageError(fmt::format("environment: {}='{}' {}", origin, path, why));
}

// A file with a secret: no other user may have access to it, nor have written it.
Descriptor open_secret(const std::string& path, std::string_view origin) {
  const auto refuse = [&](std::string_view why) { refuse_file(path, origin, why); };
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0)
    refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
  if (status.st_uid != geteuid() && status.st_uid != 0)
    refuse(fmt::format("belongs to user {}, not to you", status.st_uid));
  if (status.st_mode & (S_IRWXG | S_IRWXO)) refuse("can be reached by group or others: chmod 600 it");
  return file;
}

std::string token_from_file(const std::string& path, std::string_view origin) {
  const auto refuse = [&](std::string_view why) { refuse_file(path, origin, why); };
  const Descriptor file = open_secret(path, origin);
  char buffer[4096];
  const ssize_t length = read(file.get(), buffer, sizeof buffer);
  if (length < 0) refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (length == sizeof buffer) refuse(fmt::format("is longer than {} bytes", sizeof buffer - 1));
  std::string token(buffer, static_cast<std::size_t>(length));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) refuse("is empty");
  return token;
}

// The file at a path that the store says, which any user of the host may have written. It counts
// only if it is what rank 0 makes: a random token, in a folder that only this user can enter.
std::string made_token(const std::string& path) {
  const bool trusted = is_private(fs::path(path).parent_path());
  const std::string token = trusted ? token_from_file(path, kMadeBy) : "";
  if (token.size() == random_token().size() &&
      token.find_first_not_of("0123456789abcdef") == std::string::npos)
    return token;
  std::error_code none;
  const bool is_gone = !fs::exists(path, none) && !none;
  throw Error(fmt::format(
      "{} {} is {}: {}somebody else may have written to the store at which the workers "
      "meet; set STARLING_TOKEN_FILE",
      kMadeBy, in_quotes(path), is_gone ? "gone" : "not one", is_gone ? "rank 0 has ended, or " : ""));
}

// `list`: "eth0", or "eth0,eth1" as Gloo takes it. The first one that is up counts.
SocketAddress address_of_interface(const char* variable_name, const std::string& list) {
  const std::vector<Interface> all = interfaces();
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const auto found = std::ranges::find(all, list.substr(begin, end - begin), &Interface::name);
    if (found != all.end()) return found->address;
    begin = end + 1;
  }
  std::set<std::string> names;
  for (const Interface& one : all) names.insert(one.name);
  throw UsageError(
      fmt::format("environment: {}='{}' is no network interface that is up and has an address: there are {}",
                  variable_name, list, fmt::join(names, ", ")));
}

}  // namespace

std::string token_from_environment(const Variables& variable) {
  const auto path = variable("STARLING_TOKEN_FILE");
  const std::string token =
      path ? token_from_file(*path, "STARLING_TOKEN_FILE") : variable("STARLING_TOKEN").value_or("");
  if (token.empty() || token.size() >= kLeastToken) return token;
  throw UsageError(
      fmt::format("environment: the token of {} has {} bytes: it needs at least {}, such as "
                  "`openssl rand -hex 32` prints",
                  path ? "STARLING_TOKEN_FILE" : "STARLING_TOKEN", token.size(), kLeastToken));
}

LocalToken token_on_this_host(Store& store, int rank, std::chrono::milliseconds deadline,
                              const Interrupted& interrupted) {
  constexpr const char* kKey = "token-file";
  if (rank != 0) return {made_token(store.get(kKey, deadline, interrupted)), nullptr};
  const auto folder = std::make_shared<PrivateFolder>();
  const std::string file = folder->path() / "token", token = random_token();
  const Descriptor written(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (written.get() < 0 || write(written.get(), token.data(), token.size()) != ssize_t(token.size()))
    throw Error(fmt::format("{}: cannot be written: {}", file, std::strerror(errno)));
  store.set(kKey, file);
  return {token, folder};
}

std::string transport_from_environment(const Variables& variable, bool has_group) {
  std::string name = variable("STARLING_TRANSPORT").value_or("mapped");
  if (name == "c10d" && has_group && variable("STARLING_TLS"))
    throw UsageError(
        "environment: STARLING_TLS does not protect the blocks that STARLING_TRANSPORT=c10d sends by the "
        "process group: unset one of them");
  if (name == "mapped" || name == "tcp" || (name == "c10d" && has_group)) return name;
  throw UsageError(fmt::format(
      "environment: STARLING_TRANSPORT='{}' is not allowed{}: mapped (blocks lie in shared memory "
      "within a host and go over TCP between hosts; the default), tcp (everywhere){}",
      name, did_you_mean(name, {"mapped", "tcp"}),
      has_group ? " or c10d (blocks go by the process group)"
                : "; c10d is for a world of a process group (World::from_process_group)"));
}

bool rejoin_from_environment(const Variables& variable) {
  const std::string value = variable("STARLING_REJOIN").value_or("0");
  if (value == "0" || value == "1") return value == "1";
  throw UsageError(fmt::format(
      "environment: STARLING_REJOIN='{}' is not allowed: 1 (a restarted worker joins the others) or 0",
      value));
}

std::optional<int> initial_size_from_environment(const Variables& variable, int size) {
  const std::optional<std::string> value = variable("STARLING_INITIAL_SIZE");
  if (!value) return std::nullopt;
  const std::optional<int> number = parse_number<int>(*value);
  if (!number || *number < 1 || *number > size)
    throw UsageError(
        fmt::format("environment: STARLING_INITIAL_SIZE='{}' is not allowed: 1 to {}, the number of workers "
                    "that begin the run",
                    *value, size));
  if (*number < size && !rejoin_from_environment(variable))
    throw UsageError("environment: STARLING_INITIAL_SIZE needs STARLING_REJOIN=1: the others join a run");
  return number;
}

Timeouts timeouts_from_environment(const Variables& variable, const Timeouts& timeouts) {
  const std::optional<std::string> value = variable("STARLING_SILENT");
  if (!value) return timeouts;
  const std::optional<double> seconds = parse_number<double>(*value);
  if (!seconds || !(*seconds >= 0.1 && *seconds <= 3600))
    throw UsageError(
        fmt::format("environment: STARLING_SILENT='{}' is not allowed: 0.1 to 3600, the seconds for which "
                    "the others wait for a worker that shows no life",
                    *value));
  return {.meet = timeouts.meet, .silent = std::chrono::milliseconds(std::llround(1000 * *seconds))};
}

Partition partition_from_environment(const Variables& variable) {
  const std::string value = variable("STARLING_PARTITION").value_or("continue");
  if (value == "continue") return Partition::go_on;
  if (value == "pause") return Partition::pause;
  throw UsageError(fmt::format(
      "environment: STARLING_PARTITION='{}' is not allowed{}: continue (a worker that is cut off trains on; "
      "the default) or pause (it waits until it sees more than half of the workers)",
      value, did_you_mean(value, {"continue", "pause"})));
}

std::optional<TlsOptions> tls_from_environment(const Variables& variable) {
  const std::string how = variable("STARLING_TLS").value_or("");
  if (!how.empty() && how != "psk" && how != "cert")
    throw UsageError(
        fmt::format("environment: STARLING_TLS='{}' is not allowed{}: psk (the token is the key) or "
                    "cert (with STARLING_TLS_CERT, STARLING_TLS_KEY and STARLING_TLS_CA)",
                    how, did_you_mean(how, {"psk", "cert"})));
  TlsOptions options;
  for (const auto& [name, file] : {std::pair{"STARLING_TLS_CERT", &options.certificate},
                                   {"STARLING_TLS_KEY", &options.key},
                                   {"STARLING_TLS_CA", &options.authority}}) {
    *file = variable(name).value_or("");
    if (file->empty() == (how != "cert")) continue;
    throw UsageError(
        fmt::format("environment: {} is {}, and STARLING_TLS is {}: it needs all three files with "
                    "cert, else none",
                    name, file->empty() ? "not set" : "set", how.empty() ? "not set" : how));
  }
  if (how.empty()) return std::nullopt;
  if (how == "cert") open_secret(options.key, "STARLING_TLS_KEY");
  return options;
}

decltype(World::make_transport) own_transport(const std::string& name, const std::optional<TlsOptions>& tls) {
  TcpOptions tcp{.tls = tls};
  if (name == "tcp") {
    return [tcp](const World& world, const std::string& channel) {
      return make_tcp_transport_with(tcp, world, channel);
    };
  }
  return [tcp](const World& world, const std::string& channel) {
    MappedOptions mapped;
    mapped.tcp = tcp;
    return make_mapped_transport_with(mapped, world, channel);
  };
}

std::optional<SocketAddress> address_from_environment(const Variables& variable) {
  for (const char* name : {"STARLING_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (const auto interface = variable(name)) return address_of_interface(name, *interface);
  }
  return std::nullopt;
}

}  // namespace starling
