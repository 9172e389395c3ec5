// A topology file of four workers: JSON if it begins with a brace, else TOML.
#include "starling/topology/families.h"
#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  const TemporaryFile file(bytes, bytes.starts_with('{') ? ".json" : ".toml");
  accepted([&] {
    for (const Graph& graph : custom(file.path(), 4)) check(graph.workers() == 4, "a graph of other workers");
  });
}
