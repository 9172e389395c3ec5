// The answer to a request of HTTP/1, for a server of read-only pages (http.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace starling::cli {

struct HttpPage {
  std::string type;  // of the content
  std::string body;
  int status = 200;
};

// The whole answer. `head`: the request, of which the first line matters: "GET /path?query
// HTTP/1.1". page_of(path): nothing if there is no such page. `local`: the server is for this
// machine. Then it must be asked for by "localhost" or a numeric address in the line "Host:", so
// that no site reads it through a browser, by a name of its own that leads here.
std::string http_answer(std::string_view head, bool local,
                        const std::function<std::optional<HttpPage>(const std::string& path)>& page_of);

}  // namespace starling::cli
