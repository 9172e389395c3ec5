// The matching of largest weight, by Edmonds' blossom algorithm in primal-dual form: Edmonds,
// "Maximum matching and a polyhedron with 0,1-vertices", 1965; Galil, "Efficient algorithms for
// finding maximum matching in graphs", 1986.
//
//   y_v          dual variable (label) of a vertex or blossom;  y_u + y_v >= w_uv for every edge,
//                blossoms included
//   tight        an edge with equality; only these may be matched
//   blossom      an odd cycle of tight edges, shrunk to one vertex; nodes are vertices and blossoms
//   outer, inner nodes at an even and at an odd distance from an unmatched root, in trees of tight
//                edges
//
// Each phase grows trees from all unmatched vertices. A tight edge between two trees augments the
// matching; between outer nodes of one tree it makes a blossom; to a node in no tree it enlarges
// the tree. If no edge is tight, the duals move until one is, or until the label of an unmatched
// vertex is 0: the matching is then the heaviest.
//
// Written here because maximum_weighted_matching of Boost 1.74 (Debian 12) does not end on some
// graphs and is wrong on others (boostorg/graph issues 199, 223 and 399).
#include "starling/topology/matching.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace starling {

namespace {

// Vertices are 1 .. n, blossoms n + 1 .. 2 n; 0 is none.
class Blossoms {
 public:
  explicit Blossoms(const EdgeWeights& weights)
      : n_(weights.n),
        nodes_(n_),
        size_(2 * static_cast<std::size_t>(n_) + 1),
        edge_(size_ * size_),
        vertex_in_(size_ * size_),
        y_(size_),
        mate_(size_),
        nearest_(size_),
        top_(size_),
        parent_(size_),
        seen_(size_),
        side_(size_, kFree),
        cycle_(size_) {
    std::int64_t most = 0;
    for (int u = 1; u <= n_; ++u) {
      for (int v = 1; v <= n_; ++v) {
        const std::int64_t w = u == v ? 0 : weights.at(u - 1, v - 1);
        edge(u, v) = {u, v, w};
        most = std::max(most, w);
      }
      vertex_in(u, u) = u;
      top_[u] = u;
    }
    // In units of half a weight, so that all values are whole.
    for (int u = 1; u <= n_; ++u) y_[u] = most;
  }

  std::vector<int> run() {
    while (phase()) {
    }
    std::vector<int> mates(n_);
    for (int u = 1; u <= n_; ++u) mates[u - 1] = mate_[u] - 1;
    return mates;
  }

 private:
  enum Side : signed char { kFree = -1, kOuter, kInner };
  struct Edge {  // between two vertices, even if it stands for one between blossoms
    int u = 0, v = 0;
    std::int64_t w = 0;
  };

  Edge& edge(int x, int y) { return edge_[static_cast<std::size_t>(x) * size_ + y]; }
  // The node directly below blossom b that contains vertex v; 0 if b does not contain it.
  int& vertex_in(int b, int v) { return vertex_in_[static_cast<std::size_t>(b) * size_ + v]; }
  std::int64_t slack(const Edge& e) { return y_[e.u] + y_[e.v] - 2 * edge(e.u, e.v).w; }

  // nearest_[x]: the outer vertex with the least slack to the node x.
  void offer_nearest(int u, int x) {
    if (nearest_[x] == 0 || slack(edge(u, x)) < slack(edge(nearest_[x], x))) nearest_[x] = u;
  }
  void find_nearest(int x) {
    nearest_[x] = 0;
    for (int u = 1; u <= n_; ++u) {
      if (edge(u, x).w > 0 && top_[u] != x && side_[top_[u]] == kOuter) offer_nearest(u, x);
    }
  }

  void make_outer(int x) {  // and queues its vertices for inspection
    if (x <= n_) return queue_.push_back(x);
    for (int part : cycle_[x]) make_outer(part);
  }
  void put_into(int x, int top) {
    top_[x] = top;
    if (x <= n_) return;
    for (int part : cycle_[x]) put_into(part, top);
  }

  // The place of `part` in the cycle of b. Reverses the cycle if needed, so that the place is even.
  int even_place(int b, int part) {
    std::vector<int>& cycle = cycle_[b];
    const auto place = static_cast<int>(std::find(cycle.begin(), cycle.end(), part) - cycle.begin());
    if (place % 2 == 0) return place;
    std::reverse(cycle.begin() + 1, cycle.end());
    return static_cast<int>(cycle.size()) - place;
  }

  // Matches node x to node y over the edge between them; inside a blossom the pairs move along.
  void match(int x, int y) {
    const Edge e = edge(x, y);
    mate_[x] = e.v;
    if (x <= n_) return;
    const int base = vertex_in(x, e.u);
    const int place = even_place(x, base);
    for (int k = 0; k < place; ++k) match(cycle_[x][k], cycle_[x][k ^ 1]);
    match(base, y);
    std::rotate(cycle_[x].begin(), cycle_[x].begin() + place, cycle_[x].end());
  }
  void augment(int x, int y) {  // from x up to its root
    for (;;) {
      const int next = top_[mate_[x]];
      match(x, y);
      if (next == 0) return;
      y = next;
      x = top_[parent_[next]];
      match(y, x);
    }
  }

  int common_outer(int x, int y) {  // 0 if they are in two trees
    ++stamp_;
    for (; x != 0 || y != 0; std::swap(x, y)) {
      if (x == 0) continue;
      if (seen_[x] == stamp_) return x;
      seen_[x] = stamp_;
      x = top_[mate_[x]];
      if (x != 0) x = top_[parent_[x]];
    }
    return 0;
  }

  void shrink(int x, int root, int y) {
    int b = n_ + 1;
    while (b <= nodes_ && top_[b] != 0) ++b;
    nodes_ = std::max(nodes_, b);
    y_[b] = 0;
    side_[b] = kOuter;
    mate_[b] = mate_[root];
    std::vector<int>& cycle = cycle_[b];
    cycle = {root};
    const auto add_path = [&](int from) {
      while (from != root) {
        cycle.push_back(from);
        const int inner = top_[mate_[from]];
        cycle.push_back(inner);
        make_outer(inner);
        from = top_[parent_[inner]];
      }
    };
    add_path(x);
    std::reverse(cycle.begin() + 1, cycle.end());
    add_path(y);
    put_into(b, b);
    for (int k = 1; k <= nodes_; ++k) edge(b, k).w = edge(k, b).w = 0;
    for (int v = 1; v <= n_; ++v) vertex_in(b, v) = 0;
    for (int part : cycle) {
      for (int k = 1; k <= nodes_; ++k) {
        if (edge(b, k).w == 0 || slack(edge(part, k)) < slack(edge(b, k))) {
          edge(b, k) = edge(part, k);
          edge(k, b) = edge(k, part);
        }
      }
      for (int v = 1; v <= n_; ++v) {
        if (vertex_in(part, v) != 0) vertex_in(b, v) = part;
      }
    }
    find_nearest(b);
  }

  void expand(int b) {  // an inner blossom whose label is 0
    const std::vector<int> parts = cycle_[b];
    for (int part : parts) put_into(part, part);
    const int entry = vertex_in(b, edge(b, parent_[b]).u);
    const int place = even_place(b, entry);
    const std::vector<int>& cycle = cycle_[b];
    for (int k = 0; k < place; k += 2) {  // the even way round stays in the tree
      const int inner = cycle[k], outer = cycle[k + 1];
      parent_[inner] = edge(outer, inner).u;
      side_[inner] = kInner, side_[outer] = kOuter;
      nearest_[inner] = 0;
      find_nearest(outer);
      make_outer(outer);
    }
    side_[entry] = kInner;
    parent_[entry] = parent_[b];
    for (std::size_t k = static_cast<std::size_t>(place) + 1; k < cycle.size(); ++k) {
      side_[cycle[k]] = kFree;
      find_nearest(cycle[k]);
    }
    top_[b] = 0;
  }

  bool use(const Edge e) {  // `e`: tight, from an outer node; true: the matching has grown
    const int x = top_[e.u], y = top_[e.v];
    if (side_[y] == kFree) {
      parent_[y] = e.u;
      side_[y] = kInner;
      const int next = top_[mate_[y]];
      nearest_[y] = nearest_[next] = 0;
      side_[next] = kOuter;
      make_outer(next);
    } else if (side_[y] == kOuter) {
      const int root = common_outer(x, y);
      if (root == 0) {
        augment(x, y);
        augment(y, x);
        return true;
      }
      shrink(x, root, y);
    }
    return false;
  }

  bool is_top(int x) const { return top_[x] == x; }

  bool look_from_outer() {
    while (!queue_.empty()) {
      const int u = queue_.front();
      queue_.pop_front();
      if (side_[top_[u]] == kInner) continue;
      for (int v = 1; v <= n_; ++v) {
        if (edge(u, v).w == 0 || top_[u] == top_[v]) continue;
        if (slack(edge(u, v)) > 0) {
          offer_nearest(u, top_[v]);
        } else if (use(edge(u, v))) {
          return true;
        }
      }
    }
    return false;
  }

  // The largest possible move of the duals.
  std::int64_t step() {
    std::int64_t d = std::numeric_limits<std::int64_t>::max();  // there is an outer vertex
    for (int u = 1; u <= n_; ++u) {
      if (side_[top_[u]] == kOuter) d = std::min(d, y_[u]);
    }
    for (int b = n_ + 1; b <= nodes_; ++b) {
      if (is_top(b) && side_[b] == kInner) d = std::min(d, y_[b] / 2);
    }
    for (int x = 1; x <= nodes_; ++x) {
      if (!is_top(x) || nearest_[x] == 0) continue;
      if (side_[x] == kFree) d = std::min(d, slack(edge(nearest_[x], x)));
      if (side_[x] == kOuter) d = std::min(d, slack(edge(nearest_[x], x)) / 2);
    }
    return d;
  }

  bool phase() {  // false: the matching is the heaviest
    std::fill(side_.begin(), side_.end(), kFree);
    std::fill(nearest_.begin(), nearest_.end(), 0);
    queue_.clear();
    for (int x = 1; x <= nodes_; ++x) {
      if (!is_top(x) || mate_[x] != 0) continue;
      parent_[x] = 0;
      side_[x] = kOuter;
      make_outer(x);
    }
    if (queue_.empty()) return false;
    for (;;) {
      if (look_from_outer()) return true;
      const std::int64_t d = step();
      for (int u = 1; u <= n_; ++u) {
        if (side_[top_[u]] == kOuter) {
          if (y_[u] == d) return false;
          y_[u] -= d;
        } else if (side_[top_[u]] == kInner) {
          y_[u] += d;
        }
      }
      for (int b = n_ + 1; b <= nodes_; ++b) {
        if (!is_top(b) || side_[b] == kFree) continue;
        y_[b] += side_[b] == kOuter ? 2 * d : -2 * d;
      }
      for (int x = 1; x <= nodes_; ++x) {
        if (!is_top(x) || nearest_[x] == 0 || top_[nearest_[x]] == x) continue;
        if (slack(edge(nearest_[x], x)) == 0 && use(edge(nearest_[x], x))) return true;
      }
      for (int b = n_ + 1; b <= nodes_; ++b) {
        if (is_top(b) && side_[b] == kInner && y_[b] == 0) expand(b);
      }
    }
  }

  int n_, nodes_;
  std::size_t size_;
  std::vector<Edge> edge_;
  std::vector<int> vertex_in_;
  std::vector<std::int64_t> y_;
  std::vector<int> mate_;  // of a node: the vertex at the other end
  std::vector<int> nearest_;
  std::vector<int> top_;     // the outermost node that holds this one; 0: no such node now
  std::vector<int> parent_;  // in the tree: the vertex at the other end
  std::vector<int> seen_;
  std::vector<Side> side_;
  std::vector<std::vector<int>> cycle_;
  std::deque<int> queue_;
  int stamp_ = 0;
};

}  // namespace

std::vector<int> heaviest_matching(const EdgeWeights& weights) { return Blossoms(weights).run(); }

}  // namespace starling
