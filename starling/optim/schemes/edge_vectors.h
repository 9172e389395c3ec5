// The vectors v of PowerGossip: for each neighbour and each matrix of a block one of length 1,
// which both ends of the edge keep with the same bits. They are random at first.
#pragma once

#include <array>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "starling/optim/schemes/product_form.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class EdgeVectors {
 public:
  // An edge, for one block: v of each matrix, in the place of the last turn's product.
  struct Edge {
    std::vector<float> v;
    int turn = 0;

    std::array<float, ProductForm::kChecksum> checksum() const;  // of v and the turn
  };

  // `forms`, by block, outlive this.
  EdgeVectors(int rank, const std::vector<ProductForm>& forms) : rank_(rank), forms_(forms) {}

  // Edges to other workers end. Those of new neighbours and blocks begin.
  void attach(const std::set<int>& neighbours);
  void restart();
  // The numbers "directions": for each neighbour and each block with matrices the turn, then v.
  void state(StateVisitor& visitor);

  Edge& of(int neighbour, std::size_t block) { return edges_.at(neighbour)[block]; }
  // Begins again, with the random v of the start.
  void renew(int neighbour, std::size_t block) { of(neighbour, block) = fresh(neighbour, block); }
  // v <- v / |v|, or random if it has no direction. `turn`: that of the product which it was.
  void normalise(std::span<float> v, int neighbour, std::size_t block, const ProductForm::Matrix& m,
                 int turn) const;

 private:
  Edge fresh(int neighbour, std::size_t block) const;
  void set_random(std::span<float> v, int neighbour, std::size_t block, const ProductForm::Matrix& m,
                  int turn) const;

  const int rank_;
  const std::vector<ProductForm>& forms_;
  std::map<int, std::vector<Edge>> edges_;  // by neighbour and block
};

}  // namespace starling
