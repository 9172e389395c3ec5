// Every worker trains alone.
//
//   x_i <- x_i - lr u(g_i)
//
// With Options::mean_every it is local SGD (Stich 2019, arXiv 1805.09767): workers go on from their
// exact mean after every K steps. With an outer optimizer (outer.h) it is DiLoCo, Pier or SlowMo.
#include "starling/optim/schemes/scheme.h"

namespace starling {
namespace {

class Local final : public Scheme {
 public:
  explicit Local(const SchemeParts& parts) : Scheme(parts) {}
  void step() override { local_.all(); }
};

constexpr std::string_view kSendsNothing = "between two means it sends nothing";
constexpr auto kRefused = all_but_fp32(kSendsNothing);

}  // namespace

extern constinit const SchemeInfo scheme_local{
    .name = "local",
    .summary = "every worker alone; with mean_every local SGD, with an outer optimizer DiLoCo",
    .paper = "arXiv 1805.09767",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::none,
               .rounds = without_neighbours,
               .refused_wires = kRefused,
               .all_values = kSendsNothing},
    .advice = {.good_for = "links a hundred times too slow: local SGD and DiLoCo",
               .evidence = {{kSlowLinkStudy}}},
    .make = make<Local>,
};

}  // namespace starling
