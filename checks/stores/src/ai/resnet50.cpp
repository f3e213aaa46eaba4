/* resnet50 OUT: writes a TorchScript module with the layers of ResNet-50 (He
 * et al. 2015, with the stride in the 3 x 3 convolutions), random weights, and
 * batch norms folded into the convolutions. */
#include <torch/jit.h>
#include <torch/script.h>
#include <cmath>
#include <iostream>
#include <sstream>
#include <string>

namespace {

torch::jit::Module net("ResNet50");
std::ostringstream source;

/* to = relu(convolution(from) + add), or without relu. */
void convolution(const std::string &to, const std::string &from, int inputs,
                 int outputs, int size, int stride, bool relu = true,
                 const std::string &add = "0")
{
    static int number;
    std::string name = "w" + std::to_string(number++);
    double scale = std::sqrt((add == "0" ? 2.0 : 0.5) /
                             (inputs * size * size));
    net.register_parameter(
        name, torch::randn({outputs, inputs, size, size}) * scale, false);
    source << "    " << to << " = " << (relu ? "torch.relu(" : "(")
           << "torch.conv2d(" << from << ", self." << name << ", None, ["
           << stride << ", " << stride << "], [" << size / 2 << ", "
           << size / 2 << "]) + " << add << ")\n";
}

}

int main(int, char **argv)
try {
    torch::manual_seed(1);
    source << "def forward(self, x: Tensor) -> Tensor:\n";
    convolution("x", "x", 3, 64, 7, 2);
    source << "    x = torch.max_pool2d(x, [3, 3], [2, 2], [1, 1])\n";
    const int blocks[] = {3, 4, 6, 3};
    for (int stage = 0, inputs = 64; stage < 4; stage++)
        for (int block = 0; block < blocks[stage]; block++) {
            int middle = 64 << stage, stride = stage && !block ? 2 : 1;
            if (!block)
                convolution("around", "x", inputs, 4 * middle, 1, stride,
                            false);
            else
                source << "    around = x\n";
            convolution("x", "x", inputs, middle, 1, 1);
            convolution("x", "x", middle, middle, 3, stride);
            convolution("x", "x", middle, 4 * middle, 1, 1, true, "around");
            inputs = 4 * middle;
        }
    source << "    x = torch.mean(x, [2, 3], True)\n";
    convolution("x", "x", 2048, 1000, 1, 1, false);
    source << "    return torch.flatten(x, 1)\n";
    net.define(source.str());
    net.save(argv[1]);
    return 0;
} catch (const std::exception &error) {
    std::cerr << "resnet50: " << error.what() << "\n";
    return 1;
}
