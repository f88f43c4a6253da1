// Go and C share a program: the C half keeps lists in malloc's memory, the Go half slices and a map on
// its own heap, which its collector walks and gives back. Each checks every byte, and the other's, too.
package main

/*
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
	struct node *next;
	uint64_t number;
	unsigned char body[1000];
};

static void fill(unsigned char *bytes, size_t length, uint64_t number) {
	for (size_t at = 0; at < length; at++) bytes[at] = (unsigned char)(number * 31 + at * 7 + (at >> 8));
}

static struct node *make(uint64_t first, uint64_t count) {
	struct node *list = NULL;
	for (uint64_t number = first; number < first + count; number++) {
		struct node *node = malloc(sizeof *node);
		if (!node) abort();
		*node = (struct node){.next = list, .number = number};
		fill(node->body, sizeof node->body, number);
		list = node;
	}
	return list;
}

// The sum of all bytes; 0: one is wrong.
static uint64_t sum(const struct node *list) {
	uint64_t total = 1;
	unsigned char expected[sizeof list->body];
	for (; list; list = list->next) {
		fill(expected, sizeof expected, list->number);
		if (memcmp(expected, list->body, sizeof expected)) return 0;
		for (size_t at = 0; at < sizeof expected; at++) total += list->body[at];
	}
	return total;
}

static void drop(struct node *list) {
	while (list) {
		struct node *next = list->next;
		free(list);
		list = next;
	}
}

static void say(const char *what, uint64_t number) { printf("%s %llu\n", what, (unsigned long long)number); }
static void finish(void) { fflush(stdout); }
*/
import "C"

import (
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"
)

const (
	workers = 4
	chunks  = 160
	bytes   = 64 << 10
	nodes   = 8000
)

type worker struct {
	list  *C.struct_node
	table map[uint64][]byte
	sum   uint64
}

func filled(number uint64, length int) []byte {
	made := make([]byte, length)
	C.fill((*C.uchar)(unsafe.Pointer(&made[0])), C.size_t(length), C.uint64_t(number))
	return made
}

func (own *worker) work(number uint64) {
	own.list = C.make(C.uint64_t(number*nodes), nodes)
	own.table = map[uint64][]byte{}
	for chunk := uint64(0); chunk < chunks; chunk++ {
		own.table[chunk] = filled(number<<32|chunk, bytes)
	}
	for round := uint64(0); round < 2; round++ {
		// Half of the table becomes garbage and is made anew.
		for chunk := round; chunk < chunks; chunk += 2 {
			delete(own.table, chunk)
		}
		for chunk := round; chunk < chunks; chunk += 2 {
			own.table[chunk] = filled(number<<32|chunk, bytes)
		}
		runtime.GC()
	}
	for chunk := uint64(0); chunk < chunks; chunk++ {
		for at, found := range own.table[chunk] {
			if found != byte((number<<32|chunk)*31+uint64(at)*7+uint64(at>>8)) {
				println("a wrong byte in the table of", number, "at", chunk, at)
				os.Exit(9)
			}
			own.sum += uint64(found)
		}
	}
	total := C.sum(own.list)
	if total == 0 {
		println("a wrong byte in the list of", number)
		os.Exit(9)
	}
	own.sum += uint64(total)
}

func main() {
	done := make(chan *worker, workers)
	for number := uint64(0); number < workers; number++ {
		go func(number uint64) {
			own := &worker{}
			own.work(number)
			done <- own
		}(number)
	}
	var total uint64
	var all []*worker
	for range [workers]struct{}{} {
		own := <-done
		total += own.sum
		all = append(all, own)
	}
	for _, own := range all {
		C.drop(own.list)
		own.table = nil
	}
	debug.FreeOSMemory()
	text := C.CString("bytes of all workers add up to")
	C.say(text, C.uint64_t(total))
	C.free(unsafe.Pointer(text))
	C.finish()
}
