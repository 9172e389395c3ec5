// A request to the page of `starling status --serve`.
#include "cli/http_answer.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  std::string asked;
  const std::string answer =
      cli::http_answer(bytes, /*local=*/true, [&](const std::string& path) -> std::optional<cli::HttpPage> {
        asked = path;
        if (path != "/metrics") return std::nullopt;
        return cli::HttpPage{"text/plain", "the page\n"};
      });
  check(asked.find('?') == asked.npos, "a path with its query");
  const std::size_t end = answer.find("\r\n\r\n");
  check(end != answer.npos, "an answer without an end of its head");
  const bool good = answer.starts_with("HTTP/1.1 200 ");
  check(good == (asked == "/metrics"), "another page than was asked for");
  check(good || answer.starts_with("HTTP/1.1 40"), "another status");
  const std::string body = answer.substr(end + 4);
  check(body.find('\n') == body.npos || body.find('\n') == body.size() - 1,
        "text of the request in an answer");
  check(bytes.starts_with("HEAD ") || !body.empty(), "an answer without a text");
}

}  // namespace starling::fuzz
