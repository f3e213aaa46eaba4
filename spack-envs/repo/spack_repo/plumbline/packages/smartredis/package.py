from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.python import (
    PythonExtension,
    PythonPackage,
)

from spack.package import *

# The source distribution has the sources, but not all of its CMake files,
# and what there is clones the dependencies. So the build is described here,
# where a change of it changes the package's hash.
CMAKELISTS = """\
cmake_minimum_required(VERSION 3.13)
project(smartredis LANGUAGES CXX)
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
find_package(Threads REQUIRED)
find_package(hiredis REQUIRED)
find_package(redis++ REQUIRED)

file(GLOB sources src/c/*.cpp src/cpp/*.cpp)
add_library(smartredis SHARED ${sources})
target_include_directories(smartredis SYSTEM PUBLIC include)
target_link_libraries(smartredis
                      PUBLIC redis++::redis++ hiredis::hiredis
                      Threads::Threads)
install(TARGETS smartredis LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

if(WITH_FORTRAN)
  enable_language(Fortran)
  file(GLOB fortran src/fortran/*.F90)
  add_library(smartredis-fortran SHARED ${fortran})
  set_target_properties(smartredis-fortran PROPERTIES
    Fortran_MODULE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/modules)
  target_link_libraries(smartredis-fortran PUBLIC smartredis)
  install(TARGETS smartredis-fortran
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/modules/
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

if(WITH_PYTHON)
  find_package(pybind11 REQUIRED)
  file(GLOB bindings src/python/src/*.cpp src/python/bindings/*.cpp)
  pybind11_add_module(smartredisPy ${bindings})
  target_link_libraries(smartredisPy PRIVATE smartredis)
  install(TARGETS smartredisPy
          LIBRARY DESTINATION ${PYTHON_PLATLIB}/smartredis)
  install(DIRECTORY src/python/module/smartredis
          DESTINATION ${PYTHON_PLATLIB} FILES_MATCHING PATTERN "*.py")
endif()
"""


class Smartredis(CMakePackage, PythonExtension):
    """The SmartRedis clients: the C++ and C library, and on demand the
    Python module and the Fortran library on top of it.

    All of them stand on one library and on Spack's hiredis and
    redis-plus-plus; upstream links copies of its own into each client.
    """

    homepage = "https://github.com/CrayLabs/SmartRedis"
    git = "https://github.com/CrayLabs/SmartRedis.git"
    # Where Python's package index keeps it is known to Spack's Python
    # packages only.
    pypi = "smartredis/smartredis-0.6.1.tar.gz"
    url = PythonPackage.__dict__["url"]

    license("BSD-2-Clause")

    version(
        "0.6.1",
        sha256="88bd5425abf03830382143c9b9acc2ee362e8251eafb46de48c515e9d6a373f5",
    )

    variant("python", default=True, description="The Python module")
    variant("fortran", default=False, description="The Fortran library")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("cmake@3.18:", type="build")
    depends_on("hiredis@1.1:")
    depends_on("redis-plus-plus@1.3.8: cxxstd=17")

    with when("+python"):
        extends("python@3.9:3.11")
        depends_on("py-pybind11@2.11:", type="build")
        depends_on("py-numpy@1.18.2:1", type=("build", "run"))

    def patch(self):
        with open("CMakeLists.txt", "w") as handle:
            handle.write(CMAKELISTS)

    def cmake_args(self):
        args = [
            self.define_from_variant("WITH_FORTRAN", "fortran"),
            self.define_from_variant("WITH_PYTHON", "python"),
        ]
        if self.spec.satisfies("+python"):
            python = self.spec["python"]
            args += [
                self.define("PYTHON_EXECUTABLE", python.command.path),
                self.define("Python_EXECUTABLE", python.command.path),
                self.define("PYTHON_PLATLIB", python_platlib),
            ]
        return args

    def test_library(self):
        """the library finds all that it needs; the import is tested by
        Spack's Python packages"""
        tool = which("ldd", required=True)
        library = find_libraries("libsmartredis", self.prefix, recursive=True)
        output = tool(library[0], output=str.split)
        assert "not found" not in output, output
        check_outputs([str(self.spec["hiredis"].prefix)], output)
