cat >table.c <<'END'
#include <stdio.h>
int main(void) { printf("int squares[] = {"); for (int i = 0; i < 5; i++) printf("%d,", i * i); puts("};"); }
END
cat >main.c <<'END'
#include <stdio.h>
#include "squares.h"
int main(void) { for (int i = 0; i < 5; i++) printf("%d\n", squares[i]); }
END
printf 'all: main\n\t./main >result\nmain: main.c squares.h\n\tgcc -O1 -pipe -o $@ main.c\nsquares.h: table\n\t./table >$@\ntable: table.c\n\tgcc -O1 -o $@ table.c\n' >Makefile
make -s
cat result
make -q main
strip main
./main
