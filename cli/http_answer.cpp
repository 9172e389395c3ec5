#include "cli/http_answer.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace starling::cli {
namespace {

// Without the reason phrase, which nobody reads.
std::string answer_of(const HttpPage& page, bool with_body) {
  return fmt::format(
      "HTTP/1.1 {} \r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src "
      "'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors "
      "'none'\r\n\r\n{}",
      page.status, page.type, page.body.size(), page.status == 405 ? "Allow: GET, HEAD\r\n" : "",
      with_body ? page.body : "");
}

// The server's name in the request, without the port; empty: it says none.
std::string host_in(std::string_view head) {
  constexpr std::string_view kName = "host:";
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2)) {
    std::string line(head.substr(at + 2, head.find("\r\n", at + 2) - at - 2));
    std::ranges::transform(line, line.begin(), [](unsigned char c) { return std::tolower(c); });
    if (!line.starts_with(kName)) continue;
    const std::size_t begin = std::min(line.find_first_not_of(" \t", kName.size()), line.size());
    return line.substr(begin, line.find_first_of(line[begin] == '[' ? "]" : ": \t", begin) - begin);
  }
  return "";
}

bool is_local_name(const std::string& host) {
  return host == "localhost" || host.starts_with('[') ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

HttpPage refusal(int status, const char* text) {
  return {"text/plain; charset=utf-8", std::string(text) + "\n", status};
}

}  // namespace

std::string http_answer(std::string_view head, bool local,
                        const std::function<std::optional<HttpPage>(const std::string& path)>& page_of) {
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return answer_of(refusal(400, "this is no request of HTTP/1"), true);
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  if (method != "GET" && method != "HEAD") return answer_of(refusal(405, "read only: GET and HEAD"), true);
  if (local && !is_local_name(host_in(head)))
    return answer_of(refusal(403, "ask for localhost, or for a numeric address"), method == "GET");
  const auto page = page_of(std::string(target.substr(0, target.find('?'))));
  return answer_of(page.value_or(refusal(404, "there are /, /status.json and /metrics")), method == "GET");
}

}  // namespace starling::cli
