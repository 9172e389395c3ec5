// starling status RUN: where a run is now, in the terminal or as a page.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/http.h"
#include "cli/json.h"
#include "cli/status_page.h"
#include "cli/status_text.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/transport/tcp/asio.h"

namespace starling::cli {

namespace {

struct StatusOptions {
  std::string folder;
  bool json = false, prometheus = false;
  std::string serve;
};

// "[HOST:]PORT", an IPv6 host in brackets. Throws UsageError.
HttpServer server_at(const std::string& text) {
  HttpServer server{.host = "127.0.0.1", .page = {}, .ready = {}};
  const std::size_t colon = text.rfind(':');
  const auto port = parse_number<std::uint16_t>(text.substr(colon + 1));  // npos + 1: all of it
  if (!port)
    throw UsageError(fmt::format("status: --serve {}: wants PORT or HOST:PORT, with a port from 0 to 65535",
                                 in_quotes(text)));
  server.port = *port;
  if (colon == std::string::npos) return server;
  server.host = text.substr(0, colon);
  if (server.host.starts_with('[') && server.host.ends_with(']'))
    server.host = server.host.substr(1, server.host.size() - 2);
  asio::error_code error;
  asio::ip::make_address(server.host, error);
  if (error)
    throw UsageError(
        fmt::format("status: --serve {}: the host must be an address in numbers, such as "
                    "127.0.0.1, or 0.0.0.0 for every address of this machine",
                    in_quotes(text)));
  return server;
}

std::optional<HttpPage> page_at(const std::string& path, const std::string& folder) {
  if (path == "/") return HttpPage{"text/html; charset=utf-8", status_page(folder)};
  if (path != "/status.json" && path != "/metrics") return std::nullopt;
  try {
    const RunStatus run = read_run_status(folder);
    if (path == "/metrics")
      return HttpPage{"text/plain; version=0.0.4; charset=utf-8", status_prometheus(run)};
    return HttpPage{"application/json", json_text(status_json(run))};
  } catch (const std::exception& error) {  // the folder is gone, or the run begins anew
    return HttpPage{"text/plain; charset=utf-8", printable(error.what()) + "\n", 503};
  }
}

int serve(const StatusOptions& options) {
  HttpServer server = server_at(options.serve);
  read_run_status(options.folder);  // there is a run
  server.page = [&](const std::string& path) { return page_at(path, options.folder); };
  server.ready = [&](std::uint16_t port) {
    const bool is_v6 = server.host.find(':') != std::string::npos;
    fmt::print("http://{}{}{}:{}/ shows {}, until Ctrl-C\n", is_v6 ? "[" : "", server.host, is_v6 ? "]" : "",
               port, printable(options.folder));
    std::fflush(stdout);
  };
  return 128 + server.serve();
}

int status(const StatusOptions& options) {
  if (!options.serve.empty()) return serve(options);
  const RunStatus run = read_run_status(options.folder);
  if (options.json) {
    print_json(status_json(run));
  } else {
    fmt::print("{}", options.prometheus ? status_prometheus(run) : status_text(run));
  }
  return 0;
}

}  // namespace

void add_status(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("status", "Show where a run is now, and which worker is late");
  sub->footer("  starling status out/run");
  auto options = std::make_shared<StatusOptions>();
  sub->add_option("run", options->folder, "output folder of `starling train`")->type_name("RUN")->required();
  auto* const json = sub->add_flag("--json", options->json, "print it as JSON");
  auto* const prometheus =
      sub->add_flag("--prometheus", options->prometheus, "print it in the text format of Prometheus")
          ->excludes(json);
  sub->add_option("--serve", options->serve,
                  "serve it on PORT or HOST:PORT until Ctrl-C: a page at /, /status.json, and /metrics for "
                  "Prometheus. Read only and without authentication, so at 127.0.0.1 unless HOST names "
                  "another address; port 0: any free one")
      ->type_name("PORT")
      ->excludes(json)
      ->excludes(prometheus);
  sub->callback([options, &command] { command = [options] { return status(*options); }; });
}

}  // namespace starling::cli
