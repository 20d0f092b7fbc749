// Oracle: two translation units that include every public header, in opposite orders, make one
// program: nothing is defined twice, and types and constants are the same on both sides.
#include <cstddef>

std::size_t forward_order();
std::size_t backward_order();

int main() { return forward_order() == backward_order() ? 0 : 1; }
