// A large Map of strings on the collector's heap, and Buffers outside it; replaced, dropped, and summed up.
"use strict";
const { createHash } = require("node:crypto");

const COUNT = 120000;
const BUFFERS = 60;
const BYTES = 1 << 20;

const table = new Map();
for (let number = 0; number < COUNT; number++) table.set("key " + number, { number, text: "value ".repeat(8) + number });
const buffers = [];
for (let number = 0; number < BUFFERS; number++) buffers.push(Buffer.alloc(BYTES, "buffer " + number + " "));
for (let number = 0; number < COUNT; number += 3) table.set("key " + number, { number, text: "changed " + number });
for (let number = 1; number < COUNT; number += 5) table.delete("key " + number);
for (let number = 0; number < BUFFERS; number += 4) buffers[number] = Buffer.alloc(BYTES, "again " + number + " ");

const digest = createHash("sha256");
for (const [key, value] of table) digest.update(key + value.text);
for (const buffer of buffers) digest.update(buffer);
for (let number = 0; number < COUNT; number++) {
    const value = table.get("key " + number);
    const expected = number % 5 === 1 ? undefined : number % 3 === 0 ? "changed " + number : "value ".repeat(8) + number;
    if (value?.text !== expected) throw new Error("key " + number);
}
console.log(table.size, digest.digest("hex"));
